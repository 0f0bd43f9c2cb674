#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holdfast checkpoints from Python: to and from the state_dict of a torchvision ResNet. Needs numpy and h5py alone.

    python holdfast_io.py show CKPT.h5
    python holdfast_io.py to-torch CKPT.h5 OUT.pt      (needs torch; --live: not the moving averages, where the run keeps them)
    python holdfast_io.py from-torch IN.pt OUT.h5      (needs torch; OUT.h5 is for `holdfast train --init-from`)

The format is described in docs/checkpoint-format.md. Whoever loads from untrusted places should know that h5py itself
follows external links and external storage; this module refuses both.
"""
import argparse
import ctypes
import ctypes.util
import io
import json
import os
import struct
import sys

import h5py
import numpy as np

TRAILER_BYTES = 64
DIGEST_BYTES = 16
MAGIC = b"HOLDFAST"
FORMAT = "holdfast-checkpoint"
VERSION = 3
MAX_EXPANSION = 1032  # of deflate, the only compression that Holdfast reads
BUFFER_NAMES = ("running_mean", "running_var", "num_batches_tracked")


class CheckpointError(Exception):
    """The file is damaged, of a newer format, or not a checkpoint."""


def _xxh3_128():
    """A function bytes -> 16 bytes digest, or None where neither the module xxhash nor the library libxxhash is there."""
    try:
        import xxhash

        return lambda data: xxhash.xxh3_128(data).digest()
    except ImportError:
        pass
    name = ctypes.util.find_library("xxhash")
    if name is None:
        return None

    class Hash(ctypes.Structure):
        _fields_ = [("low64", ctypes.c_uint64), ("high64", ctypes.c_uint64)]

    try:
        function = ctypes.CDLL(name).XXH3_128bits
    except (OSError, AttributeError):
        return None
    function.restype = Hash
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

    def digest(data):
        value = function(bytes(data), len(data))
        return struct.pack(">QQ", value.high64, value.low64)

    return digest


def read_image(path, require_trailer=True):
    """The HDF5 bytes of a file without its trailer, after checking it. Returns (bytes, digest as hex or None)."""
    with open(path, "rb") as file:
        data = file.read()
    trailer = data[-TRAILER_BYTES:]
    if len(data) < TRAILER_BYTES or not trailer.startswith(MAGIC):
        if require_trailer:
            raise CheckpointError(f"{path}: not a complete checkpoint ({len(data)} bytes, no digest trailer at the end)")
        return data, None
    stored = trailer[-DIGEST_BYTES:]
    xxh3_128 = _xxh3_128()
    if xxh3_128 is None:
        print(f"{path}: the digest was not checked, only length and version (to check it: pip install xxhash)", file=sys.stderr)
    elif xxh3_128(data[:-DIGEST_BYTES]) != stored:
        raise CheckpointError(f"{path}: damaged (its content does not have the digest it was written with)")
    version, length = struct.unpack_from("<QQ", trailer, len(MAGIC))
    if version != VERSION:
        age = "newer" if version > VERSION else "older"
        raise CheckpointError(f"{path}: checkpoint format {version} is {age} than the one this program reads ({VERSION})")
    if length != len(data) - TRAILER_BYTES or any(trailer[24:-DIGEST_BYTES]):
        raise CheckpointError(f"{path}: damaged (the trailer contradicts the file)")
    return data[:-TRAILER_BYTES], stored.hex()


def _arrays(group, path, prefix=""):
    for name in group:
        full = f"{prefix}/{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise CheckpointError(f"{path}: {full} is a link to somewhere else")
        item = group[name]
        if isinstance(item, h5py.Group):
            yield from _arrays(item, path, full)
        elif isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise CheckpointError(f"{path}: {full} keeps its content in another file")
            if item.nbytes > MAX_EXPANSION * max(1, item.id.get_storage_size()):
                raise CheckpointError(f"{path}: {full} declares {item.nbytes} bytes, which the file does not hold")
            yield full, item[()]
        else:
            raise CheckpointError(f"{path}: {full} is neither a group nor a dataset")


def read_arrays(path, require_trailer=True):
    """Every dataset of the file as {absolute path: numpy array}."""
    image, _ = read_image(path, require_trailer)
    try:
        with h5py.File(io.BytesIO(image), "r") as file:
            return dict(_arrays(file, path))
    except OSError as error:
        raise CheckpointError(f"{path}: not a readable HDF5 file: {error}") from error


def load_state_dict(path, as_torch=False, require_trailer=True, live=False):
    """Parameters and BatchNorm buffers under torchvision's names, as numpy arrays (or torch tensors).

    Where the run keeps moving averages (--ema-decay) these, which its test accuracy is of; with `live` what it trains.
    """
    state = {}
    arrays = read_arrays(path, require_trailer)
    for group in ("/model/", "/buffers/") if live else ("/model/", "/buffers/", "/ema/"):  # the last one counts
        for name, value in arrays.items():
            if name.startswith(group):
                state[name[len(group):]] = np.asarray(value)
    if not state:
        raise CheckpointError(f"{path}: holds no parameters (no group /model)")
    if as_torch:
        import torch

        return {name: torch.from_numpy(np.array(value)) for name, value in state.items()}
    return state


def save_checkpoint_from_state_dict(state_dict, path):
    """Writes weights that `holdfast train --init-from PATH` reads: plain HDF5, no trailer, since it is no run's checkpoint.

    Takes numpy arrays or torch tensors. Names of DistributedDataParallel lose their "module.".
    """
    temp = f"{path}.{os.getpid()}.tmp"
    try:
        with h5py.File(temp, "w", libver=("earliest", "latest")) as file:
            for name, value in state_dict.items():
                name = name.removeprefix("module.")
                array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
                is_buffer = name.rsplit(".", 1)[-1] in BUFFER_NAMES
                kind = "<i8" if name.endswith("num_batches_tracked") else "<f4"
                if array.dtype.kind not in "iuf":
                    raise ValueError(f"{name} has type {array.dtype}; only numbers can be weights")
                target = f"/buffers/{name}" if is_buffer else f"/model/{name}"
                file.create_dataset(target, data=array.astype(kind), track_times=False)
        os.replace(temp, path)
    finally:
        if os.path.exists(temp):
            os.unlink(temp)


def _show(path):
    image, digest = read_image(path, require_trailer=False)
    print(f"{path}: {len(image)} bytes of HDF5, digest {digest or 'none (plain HDF5 file)'}")
    arrays = read_arrays(path, require_trailer=False)
    for name, value in sorted(arrays.items()):
        if name.endswith("/json"):
            print(f"{name}: {json.dumps(json.loads(value.tobytes()), indent=2)}")
        elif value.ndim == 0:
            print(f"{name}: {value}")
        else:
            print(f"{name}: {value.dtype} {list(value.shape)}")
    parameters = sum(value.size for name, value in arrays.items() if name.startswith("/model/"))
    print(f"{parameters:,} parameters")


def _to_torch(source, target, live):
    import torch

    torch.save(load_state_dict(source, as_torch=True, require_trailer=False, live=live), target)


def _from_torch(source, target):
    import torch

    loaded = torch.load(source, map_location="cpu", weights_only=True)
    # The common wrappings: {"state_dict": ...}, and the snapshot of the DDP tutorial, {"MODEL_STATE": ...}.
    for key in ("state_dict", "MODEL_STATE", "model"):
        if isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    save_checkpoint_from_state_dict(loaded, target)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="holdfast_io.py", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, targets in (("show", ["CKPT"]), ("to-torch", ["CKPT", "OUT"]), ("from-torch", ["IN", "OUT"])):
        command = commands.add_parser(name)
        for target in targets:
            command.add_argument(target)
        if name == "to-torch":
            command.add_argument("--live", action="store_true", help="the weights in training, where there are moving averages too")
    options = vars(parser.parse_args(arguments))
    try:
        if options["command"] == "show":
            _show(options["CKPT"])
        elif options["command"] == "to-torch":
            _to_torch(options["CKPT"], options["OUT"], options["live"])
        else:
            _from_torch(options["IN"], options["OUT"])
    except (CheckpointError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"error: {error} (this command needs torch: pip install torch)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
