# SPDX-License-Identifier: Apache-2.0
"""python/holdfast_io.py against files of the C++ side and back: holdfast_io_test.py CHECKPOINT_SAMPLE PYTHON_FOLDER.
Ends with 77 (ctest: skipped) where h5py or numpy is missing."""
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import h5py
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SAMPLE, PYTHON_FOLDER = sys.argv[1:3]
sys.path.insert(0, PYTHON_FOLDER)
import holdfast_io  # noqa: E402


class HoldfastIo(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.checkpoint = os.path.join(self.folder, "c.h5")
        subprocess.run([SAMPLE, "write", self.checkpoint], check=True)

    def test_h5py_opens_the_file_with_its_trailer(self):
        with h5py.File(self.checkpoint, "r") as file:
            self.assertEqual(file["progress/step"][()], 42)
            self.assertEqual(file.attrs["version"], 3)
            format_name = file.attrs["format"]
            self.assertEqual(getattr(format_name, "decode", lambda: format_name)(), "holdfast-checkpoint")

    def test_state_dict_has_parameters_and_buffers(self):
        state = holdfast_io.load_state_dict(self.checkpoint)
        self.assertEqual(sorted(state), ["bn1.num_batches_tracked", "bn1.running_mean", "conv1.weight"])
        np.testing.assert_array_equal(state["conv1.weight"], np.array([[1.5, -2, 3], [4, 5, 6]], np.float32))
        self.assertEqual(state["conv1.weight"].dtype, np.float32)
        self.assertEqual((state["bn1.num_batches_tracked"].dtype, state["bn1.num_batches_tracked"].shape), (np.int64, ()))

    def test_moving_averages_are_taken_where_they_are_kept(self):
        path = os.path.join(self.folder, "averaging.h5")
        with h5py.File(path, "w") as file:
            for group, value in (("model", 1), ("buffers", 2), ("ema", 3)):
                names = {"model": ["fc.weight"], "buffers": ["bn1.running_var"], "ema": ["fc.weight", "bn1.running_var"]}[group]
                for name in names:
                    file[f"{group}/{name}"] = np.full(2, value, np.float32)
            file["buffers/bn1.num_batches_tracked"] = np.int64(7)
        averages = holdfast_io.load_state_dict(path, require_trailer=False)
        self.assertEqual({name: value.max() for name, value in averages.items()},
                         {"fc.weight": 3, "bn1.running_var": 3, "bn1.num_batches_tracked": 7})
        live = holdfast_io.load_state_dict(path, require_trailer=False, live=True)
        self.assertEqual({name: value.max() for name, value in live.items()},
                         {"fc.weight": 1, "bn1.running_var": 2, "bn1.num_batches_tracked": 7})

    def test_live_weights_by_the_command_line(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        path, pt = os.path.join(self.folder, "averaging.h5"), os.path.join(self.folder, "w.pt")
        with h5py.File(path, "w") as file:
            file["model/fc.weight"], file["ema/fc.weight"] = np.full(2, 1, np.float32), np.full(2, 3, np.float32)
        for flags, expected in (([], 3), (["--live"], 1)):
            self.assertEqual(holdfast_io.main(["to-torch", *flags, path, pt]), 0)
            self.assertEqual(torch.load(pt, weights_only=True)["fc.weight"].tolist(), [expected] * 2)

    def test_cpp_reads_what_python_writes(self):
        weights = os.path.join(self.folder, "w.h5")
        state = holdfast_io.load_state_dict(self.checkpoint)
        holdfast_io.save_checkpoint_from_state_dict({f"module.{name}": value for name, value in state.items()}, weights)
        self.assertEqual(subprocess.run([SAMPLE, "read", weights]).returncode, 0)
        state["conv1.weight"] = state["conv1.weight"] + 1
        holdfast_io.save_checkpoint_from_state_dict(state, weights)
        self.assertEqual(subprocess.run([SAMPLE, "read", weights]).returncode, 1)
        self.assertEqual(sorted(os.listdir(self.folder)), ["c.h5", "w.h5"])

    def test_damage_is_found(self):
        with open(self.checkpoint, "rb") as file:
            good = file.read()
        damaged = [good[:-1], good[:-64], b"", good + b"\0", good[:-50] + b"\1" + good[-49:]]
        if holdfast_io._xxh3_128() is None:
            print("the digest is not tested: neither xxhash nor libxxhash is here", file=sys.stderr)
        else:
            damaged += [good[:i] + bytes([good[i] ^ 8]) + good[i + 1:] for i in range(0, len(good), 61)]
        for content in damaged:
            with open(self.checkpoint, "wb") as file:
                file.write(content)
            with self.assertRaises(holdfast_io.CheckpointError):
                holdfast_io.load_state_dict(self.checkpoint)

    def test_files_that_point_elsewhere_are_refused(self):
        path = os.path.join(self.folder, "x.h5")
        with h5py.File(path, "w") as file:
            file["model/w"] = h5py.ExternalLink(self.checkpoint, "/model/conv1.weight")
        with self.assertRaises(holdfast_io.CheckpointError):
            holdfast_io.load_state_dict(path, require_trailer=False)
        with h5py.File(path, "w") as file:
            file.create_dataset("model/w", (4,), "u1", external=[("/etc/passwd", 0, 4)])
        with self.assertRaises(holdfast_io.CheckpointError):
            holdfast_io.load_state_dict(path, require_trailer=False)

    def test_declared_size_must_be_in_the_file(self):
        path = os.path.join(self.folder, "x.h5")
        with h5py.File(path, "w") as file:
            file.create_dataset("model/w", (1 << 50,), "f4")
        with self.assertRaises(holdfast_io.CheckpointError):
            holdfast_io.load_state_dict(path, require_trailer=False)

    def test_command_line(self):
        script = os.path.join(PYTHON_FOLDER, "holdfast_io.py")
        shown = subprocess.run([sys.executable, script, "show", self.checkpoint], capture_output=True, text=True)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        for expected in ("/progress/step: 42", "6 parameters", '"seed": 1'):
            self.assertIn(expected, shown.stdout)
        missing = subprocess.run([sys.executable, script, "show", "nowhere.h5"], capture_output=True, text=True)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("nowhere.h5", missing.stderr)

    def test_torch_and_back(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        script = os.path.join(PYTHON_FOLDER, "holdfast_io.py")
        pt, h5 = os.path.join(self.folder, "w.pt"), os.path.join(self.folder, "w.h5")
        self.assertEqual(holdfast_io.main(["to-torch", self.checkpoint, pt]), 0)
        self.assertEqual(torch.load(pt, weights_only=True)["bn1.num_batches_tracked"].shape, ())
        subprocess.run([sys.executable, script, "from-torch", pt, h5], check=True)
        self.assertEqual(subprocess.run([SAMPLE, "read", h5]).returncode, 0)
        torch.save({"MODEL_STATE": torch.load(pt, weights_only=True), "EPOCHS_RUN": 3}, pt)
        self.assertEqual(holdfast_io.main(["from-torch", pt, h5]), 0)
        self.assertEqual(subprocess.run([SAMPLE, "read", h5]).returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
