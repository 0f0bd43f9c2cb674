#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: hostile_hdf5_test.py CONFINED_READER: writes HDF5 files that are meant to do harm, with h5py, and gives them to the
readers of checkpoints, of weights and of packed images. Each must be refused with a message that names what is wrong, with
little memory, and without opening any file (confined_reader would die of it)."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import h5py
    import numpy
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

READER = sys.argv.pop(1)
SECRET = "/etc/passwd"


def checkpoint_file(file):
    """What is under the state that confined_reader loads (SmallState)."""
    file.attrs.create("format", numpy.bytes_(b"holdfast-checkpoint"))
    file.attrs["version"] = numpy.int64(3)
    for path, content in {
        "model/conv1.weight": numpy.zeros((2, 3), "<f4"),
        "momentum/conv1.weight": numpy.zeros((2, 3), "<f4"),
        "buffers/bn1.running_mean": numpy.zeros(2, "<f4"),
        "buffers/bn1.num_batches_tracked": numpy.int64(3),
        "progress/epoch": numpy.int64(1),
        "progress/step": numpy.int64(42),
        "progress/loss_sum": numpy.float64(2.5),
        "history/loss": numpy.zeros(2, "<f8"),
        "settings/json": numpy.frombuffer(b'{"seed": 1}', "u1"),
    }.items():
        file.create_dataset(path, data=content)


def image_file(file):
    file.attrs.create("format", numpy.bytes_(b"holdfast-images"))
    file.attrs["version"] = numpy.int64(1)
    file.create_dataset("class_names", data=numpy.frombuffer(b"cat\ndog\n", "u1"))
    for split in ("train", "test"):
        file.create_dataset(f"{split}/jpeg", data=numpy.frombuffer(b"no JPEG", "u1"))
        file.create_dataset(f"{split}/offsets", data=numpy.array([0, 7], "<i8"))
        file.create_dataset(f"{split}/labels", data=numpy.zeros(1, "u1"))


def declare(file, path, shape, kind=h5py.h5t.STD_U8LE, creation=None):
    """A dataset of any size, of which nothing is written."""
    group = file.require_group(path.rpartition("/")[0] or "/")
    h5py.h5d.create(group.id, path.rpartition("/")[2].encode(), kind, h5py.h5s.create_simple(shape), creation)


def chunked(shape, *filters):
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk(shape)
    for number in filters:
        creation.set_filter(number, h5py.h5z.FLAG_OPTIONAL, ())
    return creation


def virtual(file):
    layout = h5py.VirtualLayout((64,), "u1")
    layout[:] = h5py.VirtualSource(SECRET, "/x", (64,))
    file.create_virtual_dataset("model/v", layout)


def cycle(file):
    file["model/again"] = file.require_group("model")


def deep(levels):
    def make(file):
        group = file
        for _ in range(levels):
            group = group.create_group("g")

    return make


def crowd(file):
    for i in range(3000):
        file.create_group(f"model/group-{i}")


def replaced_attribute(name, value, shape=None, dtype=None):
    def make(file):
        del file.attrs[name]
        file.attrs.create(name, value, shape, dtype)

    return make


def of_type(dtype):
    return lambda file: file.create_dataset("model/t", (2,), dtype)


# What it does to the file -> words of the refusal.
HOSTILE = {
    "external storage": (lambda f: f.create_dataset("model/x", (64,), "u1", external=[(SECRET, 0, 64)]), "another file"),
    "external storage, unlimited": (lambda f: f.create_dataset("model/x", (64,), "u1", external=[(SECRET, 0, h5py.h5f.UNLIMITED)]), "another file"),
    "external storage of many files": (
        lambda f: f.create_dataset("model/x", (64,), "u1", external=[(f"/dev/shm/{i}", 0, 1) for i in range(64)]), "another file"),
    "external link": (lambda f: f.__setitem__("model/x", h5py.ExternalLink(SECRET, "/x")), "link"),
    "external link to itself": (lambda f: f.__setitem__("model/x", h5py.ExternalLink(f.filename, "/model")), "link"),
    "soft link": (lambda f: f.__setitem__("model/x", h5py.SoftLink("/model/conv1.weight")), "link"),
    "soft link to itself": (lambda f: f.__setitem__("model/x", h5py.SoftLink("/model/x")), "link"),
    "virtual dataset": (virtual, "virtual"),
    "second name": (lambda f: f.__setitem__("model/second", f["class_names"] if "class_names" in f else f["history/loss"]), "second name"),
    "group in itself": (cycle, "second name"),
    "root in a group": (lambda f: f.__setitem__("model/root", f["/"]), "second name"),
    "17 groups": (deep(17), "nested deeper"),
    "1000 groups": (deep(1000), "nested deeper"),
    "2^40 bytes that are not there": (lambda f: declare(f, "/model/x", (1 << 40,)), "declares"),
    "2^62 bytes": (lambda f: declare(f, "/model/x", (1 << 62,)), "declares"),
    "2^63 - 1 elements": (lambda f: declare(f, "/model/x", ((1 << 63) - 1,)), "declares"),
    "extents that overflow": (lambda f: declare(f, "/model/x", (1 << 31, 1 << 31, 4)), "declares"),
    "extents that overflow to 16": (lambda f: declare(f, "/model/x", (1 << 32, 1 << 31, 2, 16)), "declares"),
    "32 dimensions": (lambda f: declare(f, "/model/x", (4,) * 32), "declares"),
    "2^62 bytes in chunks": (lambda f: declare(f, "/model/x", (1 << 62,), creation=chunked((1 << 20,))), "chunk"),
    "one chunk of 4 GB": (lambda f: declare(f, "/model/x", ((1 << 32) - 1,), creation=chunked(((1 << 32) - 1,))), "chunk"),
    "10^6 chunks": (lambda f: f.create_dataset("model/x", (1000_000,), "u1", chunks=(1,)), "chunk"),
    "missing chunks": (lambda f: f.create_dataset("model/x", (64,), "u1", chunks=(8,), maxshape=(None,)), "chunk"),
    "unknown filter": (lambda f: declare(f, "/model/x", (64,), creation=chunked((64,), 32015)), "filter"),
    "lzf": (lambda f: f.create_dataset("model/x", data=numpy.zeros(64, "u1"), chunks=(64,), compression="lzf"), "filter"),
    "fletcher32": (lambda f: f.create_dataset("model/x", data=numpy.zeros(64, "u1"), chunks=(64,), fletcher32=True), "filter"),
    "scale-offset": (lambda f: f.create_dataset("model/x", data=numpy.zeros(64, "i4"), chunks=(64,), scaleoffset=4), "filter"),
    "no dataspace": (lambda f: f.create_dataset("model/x", dtype="f4", shape=None, data=h5py.Empty("f4")), "null dataspace"),
    "named type": (lambda f: f.__setitem__("model/t", numpy.dtype("f4")), "neither a group nor a dataset"),
    "variable-length text": (of_type(h5py.string_dtype()), "element type"),
    "variable-length rows": (of_type(h5py.vlen_dtype("i4")), "element type"),
    "text": (of_type("S5"), "element type"),
    "references": (of_type(h5py.ref_dtype), "element type"),
    "region references": (of_type(h5py.regionref_dtype), "element type"),
    "compound": (of_type([("a", "i4"), ("b", "f8")]), "element type"),
    "arrays": (of_type("(3,)f4"), "element type"),
    "enumeration": (of_type(h5py.enum_dtype({"a": 1})), "element type"),
    "half floats": (of_type("f2"), "element type"),
    "big endian": (of_type(">f4"), "element type"),
    "format of variable length": (replaced_attribute("format", "holdfast-checkpoint", None, h5py.string_dtype()), "fixed-length string"),
    "format of 60,000 values": (replaced_attribute("format", numpy.zeros(60_000, "S1")), "not a single value"),
    "version of 8,000 values": (replaced_attribute("version", numpy.zeros(8_000, "i8")), "not a single value"),
    "version as text": (replaced_attribute("version", numpy.bytes_(b"1")), "not an integer"),
    "no format": (lambda f: f.attrs.__delitem__("format"), "'format'"),
}  # fmt: skip
# Not harmful to open, but no checkpoint has it: its datasets are contiguous, so 1 MB cannot unfold to 1 GB.
COMPRESSED = {
    "gzip": lambda f: f.create_dataset("model/x", data=numpy.zeros(100_000, "u1"), chunks=(100_000,), compression="gzip"),
    "gzip and shuffle": lambda f: f.create_dataset("model/x", data=numpy.zeros(100_000, "f4"), compression="gzip", shuffle=True),
}
# In the newer file formats, all of which are refused.
NEWER = {
    "nothing": lambda f: None,
    "huge attribute": lambda f: f.attrs.create("format2", numpy.zeros(50_000_000, "u1")),
    "crowded group": crowd,
    "external link": HOSTILE["external link"][0],
    "virtual dataset": virtual,
}


class HostileHdf5(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="holdfast-hostile-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, base, change, libver="earliest", **options) -> Path:
        path = self.folder / f"{libver}-{name.replace('/', ' ')}.h5"
        with h5py.File(path, "w", libver=(libver, "latest"), **options) as file:
            base(file)
            change(file)
        return path

    def outcomes(self, kind, paths) -> dict:
        ended = subprocess.run([READER, kind, *paths], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        found = dict(line.split("\t", 1) for line in ended.stdout.splitlines())
        self.assertEqual(set(found), {str(path) for path in paths})
        return found

    def assert_refused(self, kind, base, table, libver="earliest"):
        files = {name: self.write(name, base, change, libver) for name, (change, _) in table.items()}
        outcomes = self.outcomes(kind, files.values())
        for name, (_, words) in table.items():
            with self.subTest(f"{kind}: {name}"):
                outcome = outcomes[str(files[name])]
                self.assertTrue(outcome.startswith("refused: FILE: "), outcome)
                self.assertIn(words, outcome)

    def test_unchanged_files_are_read(self):
        nothing = lambda file: None  # noqa: E731
        path = self.write("good", checkpoint_file, nothing)
        self.assertEqual(self.outcomes("checkpoint", [path])[str(path)], "accepted")
        self.assertEqual(self.outcomes("weights", [self.write("good", checkpoint_file, lambda f: f.__delitem__("buffers"))]).popitem()[1], "accepted")
        self.assertIn("Not a JPEG", self.outcomes("images", [self.write("images", image_file, nothing)]).popitem()[1])

    def test_checkpoints(self):
        self.assert_refused("checkpoint", checkpoint_file, HOSTILE)
        self.assert_refused("checkpoint", checkpoint_file, {name: (change, "compressed") for name, change in COMPRESSED.items()})

    def test_newer_file_formats(self):
        for kind, base in (("checkpoint", checkpoint_file), ("weights", checkpoint_file), ("images", image_file)):
            self.assert_refused(kind, base, {name: (change, "superblock") for name, change in NEWER.items()}, "latest")

    def test_weights(self):
        table = {name: row for name, row in HOSTILE.items() if "format" not in name and "version" not in name}
        self.assert_refused("weights", checkpoint_file, table)

    def test_images(self):
        self.assert_refused("images", image_file, HOSTILE)

    def test_jpegs_that_are_elsewhere(self):
        def instead(path, make):
            def change(file):
                del file[path]
                make(file)

            return change

        table = {
            "stored elsewhere": (instead("train/jpeg", lambda f: f.create_dataset("train/jpeg", (7,), "u1", external=[(SECRET, 0, 7)])), "another file"),
            "linked": (instead("train/jpeg", lambda f: f.__setitem__("train/jpeg", h5py.ExternalLink(SECRET, "/x"))), "link"),
            "2^62 bytes": (instead("train/jpeg", lambda f: declare(f, "/train/jpeg", (1 << 62,))), "declares"),
            "2^62 labels": (instead("train/labels", lambda f: declare(f, "/train/labels", (1 << 62,))), "declares"),
            "2^60 offsets": (instead("train/offsets", lambda f: declare(f, "/train/offsets", (1 << 60,), h5py.h5t.STD_I64LE)), "declares"),
            "2^62 bytes of names": (instead("class_names", lambda f: declare(f, "/class_names", (1 << 62,))), "declares"),
        }
        self.assert_refused("images", image_file, table)

    def test_user_block(self):
        path = self.write("user block", checkpoint_file, lambda file: None, userblock_size=512)
        self.assertIn("refused: FILE: not an HDF5 file", self.outcomes("checkpoint", [path])[str(path)])


if __name__ == "__main__":
    unittest.main()
