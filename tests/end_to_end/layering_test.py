#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: layering_test.py [SOURCE_DIR]

Reads every #include under src/ and fails on an arrow that the architecture does not have:
commands -> train -> {parallel, data, model, optim, checkpoint, report} -> {hdf5, cuda} -> core, and on a library header
outside the one folder, or in a header where it may not be. First it breaks each rule on purpose and must notice."""
import pathlib
import re
import sys

PARTS = ["parallel", "data", "model", "optim", "checkpoint", "report"]
LAYERS = [["commands"], ["train"], PARTS, ["hdf5", "cuda"], ["core"]]  # highest first; a layer's folders are strangers
ONLY_IN = {"hdf5": ("hdf5/",), "mpi": ("parallel/",), "nccl": ("parallel/nccl_communicator.cpp",), "cuda_runtime": ("cuda/", "parallel/nccl_communicator.cpp")}
NOT_IN_HEADERS = ("torch/torch.h", "nccl.h", "hdf5.h", "hdf5_hl.h")
TORCH_FREE = ("core", "hdf5", "cuda", "data", "checkpoint", "report", "parallel", "optim")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def layer(folder):
    return next((number for number, folders in enumerate(LAYERS) if folder in folders), None)


def problem(file, included):
    """What is wrong with `included` in `file` (relative to src/), or None."""
    folder = file.split("/")[0] if "/" in file else None  # main.cpp lies above all folders
    target = included.split("/")[0]
    if folder is not None and layer(folder) is None:
        return f"folder {folder} is in no layer"
    if "/" in included and layer(target) is not None and target != folder:
        if folder is None:
            return None
        if layer(target) <= layer(folder):
            return f"{folder} may not know {target}"
    stem = re.sub(r"(_hl|_api)?\.h$", "", included)
    if stem in ONLY_IN and not file.startswith(ONLY_IN[stem]):
        return f"<{included}> belongs to {' '.join(ONLY_IN[stem])} alone"
    if included in NOT_IN_HEADERS and file.endswith(".hpp"):
        return f"<{included}> in a header"
    if folder in TORCH_FREE and target in ("torch", "ATen", "c10") and not included.startswith("torch/headeronly"):
        return f"{folder} is built without torch"
    return None


def check_the_rules():
    wrong = [("data/a.cpp", "model/resnet.hpp"), ("core/a.hpp", "hdf5/image_file.hpp"), ("train/a.cpp", "commands/a.hpp"),
             ("checkpoint/a.cpp", "hdf5.h"), ("hdf5/a.hpp", "hdf5.h"), ("train/a.cpp", "mpi.h"), ("train/a.hpp", "torch/torch.h"),
             ("parallel/a.hpp", "nccl.h"), ("checkpoint/a.cpp", "ATen/ATen.h"), ("hdf5/a.cpp", "cuda/device_runtime.hpp"),
             ("utils/a.cpp", "core/log.hpp"), ("data/a.cpp", "cuda_runtime_api.h")]
    right = [("data/a.cpp", "hdf5/image_file.hpp"), ("main.cpp", "commands/train.hpp"), ("train/a.cpp", "torch/torch.h"),
             ("hdf5/a.cpp", "hdf5.h"), ("parallel/nccl_communicator.cpp", "nccl.h"), ("parallel/a.hpp", "mpi.h"), ("model/a.hpp", "ATen/core/Tensor.h")]
    return ([f"the rules accept {file} including {included}" for file, included in wrong if not problem(file, included)]
            + [f"the rules refuse {file} including {included}" for file, included in right if problem(file, included)])


def main():
    source = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "src"
    failures, seen = check_the_rules(), 0
    for file in sorted(path for path in source.rglob("*") if path.suffix in (".cpp", ".hpp", ".cu", ".cuh", ".h")):
        for included in INCLUDE.findall(file.read_text()):
            seen += 1
            found = problem(str(file.relative_to(source)), included)
            if found:
                failures.append(f"src/{file.relative_to(source)}: includes {included}: {found}")
    print("\n".join(failures) or f"{seen} includes follow the arrows")
    return 1 if failures or seen == 0 else 0


sys.exit(main())
