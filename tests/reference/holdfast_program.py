# SPDX-License-Identifier: Apache-2.0
"""Runs the Holdfast program for the comparisons with PyTorch and reads what it wrote.

Imported first by every compare_*.py: where PyTorch is not installed, the comparison exits with 77 (skipped,
for CTest).
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
# For comparisons that are not of what is computed.
SMALLEST_NETWORK = {"model": "resnet18", "width": 1, "threads": 1}


def skip(reason: str) -> None:
    print(f"SKIP: {reason}")
    sys.exit(SKIPPED)


try:
    import h5py
    import numpy
    import torch
except ImportError as error:
    skip(f"{error}; the comparison with PyTorch needs torch, numpy and h5py (set HOLDFAST_PYTHON)")


class Holdfast:
    def __init__(self, binary: Path):
        if not binary.is_file():
            sys.exit(f"{binary} is not there; build it or name it with --holdfast")
        self.binary = binary

    def train(self, ranks: int = 1, **settings) -> None:
        """Settings are options of `holdfast train`: limit_train=100 is --limit-train 100."""
        options = [
            part for name, value in settings.items() for part in ("--" + name.replace("_", "-"), str(value))
        ]
        command = [
            os.environ.get("MPIEXEC", "mpirun"),
            "-np",
            str(ranks),
            "--oversubscribe",
            "--bind-to",
            "none",
        ]
        command += [str(self.binary), "train", "--device", "cpu", "--progress", "never", *options]
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(
            command, env=os.environ | as_root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stdout}\nended with code {done.returncode}")

    def torch_library(self) -> Path | None:
        listing = subprocess.run(["ldd", self.binary], capture_output=True, text=True).stdout
        found = re.search(r"libtorch_cpu\.so => (\S+)", listing)
        return Path(found[1]).resolve() if found else None

    def shares_torch_with_python(self) -> bool:
        """The very same library file on the very same machine: then every bit has to be equal."""
        return self.torch_library() == (Path(torch.__file__).parent / "lib" / "libtorch_cpu.so").resolve()


def newest_checkpoint(run: Path) -> Path:
    checkpoints = sorted((run / "checkpoints").glob("step-*.h5"))
    assert checkpoints, f"{run}/checkpoints holds no step-*.h5"
    return checkpoints[-1]


def read_checkpoint(path: Path, *groups: str) -> dict[str, numpy.ndarray]:
    """All datasets of the groups, keyed "group/name"."""
    with h5py.File(path) as file:
        return {f"{group}/{name}": dataset[...] for group in groups for name, dataset in file[group].items()}


def read_steps(run: Path) -> list[dict]:
    """Rows of metrics.jsonl in the order of steps. The last row of a step counts: an earlier one is
    discarded work.
    """
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = {row["step"]: row for row in rows if "step_s" in row}  # other events time no step
    return [steps[step] for step in sorted(steps)]


def read_epochs(run: Path) -> list[dict[str, str]]:
    """Rows of metrics.csv."""
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


class Comparison:
    """Collects what differs. With the same torch library bits have to be equal, otherwise values to within
    1e-5.
    """

    TOLERANCE = 1e-5

    def __init__(self, exact: bool):
        self.exact = exact
        self.num_failed = 0

    @staticmethod
    def of(holdfast: Holdfast) -> "Comparison":
        exact = holdfast.shares_torch_with_python()
        if not exact:
            print(
                f"NOTE: Holdfast uses {holdfast.torch_library()}, Python torch {torch.__version__} in "
                f"{Path(torch.__file__).parent}: other libraries give other bits, so values are compared at "
                f"{Comparison.TOLERANCE}"
            )
        return Comparison(exact)

    def check(self, name: str, ok: bool, detail: str = "") -> None:
        print(f"{'ok  ' if ok else 'FAIL'} {name}{': ' + detail if detail else ''}")
        self.num_failed += not ok

    def arrays(self, name: str, ours: dict[str, numpy.ndarray], theirs: dict[str, numpy.ndarray]) -> None:
        """Equal names, shapes, types and values; exactly means equal bytes, so +0 is not -0."""
        self.check(
            f"{name}, names",
            ours.keys() == theirs.keys(),
            f"{len(ours)}"
            if ours.keys() == theirs.keys()
            else f"in one only: {sorted(ours.keys() ^ theirs.keys())}",
        )
        shared = sorted(ours.keys() & theirs.keys())
        forms = [
            key
            for key in shared
            if (ours[key].shape, ours[key].dtype) != (theirs[key].shape, theirs[key].dtype)
        ]
        self.check(f"{name}, shapes and types", not forms, f"differ: {forms[:5]}" if forms else "")
        different = [key for key in shared if key not in forms and not self._equal(ours[key], theirs[key])]
        worst = max((float(numpy.max(numpy.abs(ours[key] - theirs[key]))) for key in different), default=0.0)
        how = "bit for bit" if self.exact else f"within {self.TOLERANCE}"
        self.check(
            f"{name}, values {how}",
            not different,
            f"{len(different)} of {len(shared)} differ, by up to {worst:g}, first {different[0]}"
            if different
            else f"{sum(ours[key].size for key in shared)} values",
        )

    def _equal(self, ours: numpy.ndarray, theirs: numpy.ndarray) -> bool:
        if self.exact:
            return ours.tobytes() == theirs.tobytes()
        return numpy.allclose(ours, theirs, rtol=self.TOLERANCE, atol=self.TOLERANCE)

    def exit(self) -> None:
        print(f"{self.num_failed} failed" if self.num_failed else "all equal")
        sys.exit(1 if self.num_failed else 0)


def argument_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    default = Path(__file__).resolve().parents[2] / "build" / "bin" / "holdfast"
    parser.add_argument(
        "--holdfast", type=Path, default=default, help="the program to compare (default: %(default)s)"
    )
    return parser


def scratch_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="holdfast-reference-")
