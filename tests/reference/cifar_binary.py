# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10's official binary layout: writes small random sets in it and reads them as PyTorch would train
on them.

Layout: data_batch_1.bin ... data_batch_5.bin and test_batch.bin, 10,000 records each, a record is one label
byte and 3,072 pixel bytes (CHW). Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

from pathlib import Path

import numpy
import torch

RECORD_BYTES = 1 + 3 * 32 * 32
RECORDS_PER_FILE = 10_000
TRAIN_FILES = [f"data_batch_{number}.bin" for number in range(1, 6)]
TEST_FILE = "test_batch.bin"
CLASS_NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()
# Source: the tutorial's transforms.Normalize arguments.
MEAN = (0.49139968, 0.48215827, 0.44653124)
STDDEV = (0.24703233, 0.24348505, 0.26158768)


def write_random_set(folder: Path, num_train: int, num_test: int, seed: int = 2024) -> Path:
    """Random images up front; the rest of each file is a hole of zeros, so the full layout costs little
    space.
    """
    assert num_train <= RECORDS_PER_FILE and num_test <= RECORDS_PER_FILE
    folder.mkdir(parents=True, exist_ok=True)
    generator = numpy.random.default_rng(seed)
    for name in [*TRAIN_FILES, TEST_FILE]:
        num_records = {TRAIN_FILES[0]: num_train, TEST_FILE: num_test}.get(name, 0)
        records = generator.integers(0, 256, (num_records, RECORD_BYTES), dtype=numpy.uint8)
        records[:, 0] %= len(CLASS_NAMES)
        with open(folder / name, "wb") as file:
            file.write(records.tobytes())
            file.truncate(RECORDS_PER_FILE * RECORD_BYTES)
    (folder / "batches.meta.txt").write_text("\n".join(CLASS_NAMES) + "\n")
    return folder


def read_train_set(folder: Path, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (uint8, N x 3 x 32 x 32) and labels."""
    records = numpy.concatenate([numpy.fromfile(folder / name, dtype=numpy.uint8) for name in TRAIN_FILES])
    records = torch.from_numpy(records.reshape(-1, RECORD_BYTES)[:limit].copy())
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].to(torch.int64)


def normalize(pixels_NCHW: torch.Tensor) -> torch.Tensor:
    """Images as ToTensor and Normalize of torchvision give them (float32)."""
    mean_C, stddev_C = torch.tensor(MEAN), torch.tensor(STDDEV)
    return pixels_NCHW.to(torch.float32).div(255).sub_(mean_C[:, None, None]).div_(stddev_C[:, None, None])
