# SPDX-License-Identifier: Apache-2.0
"""Runs the Holdfast program, alone or under mpirun, for the tests of tests/end_to_end, and reads what it wrote.

A test file ends with `holdfast_run.main()`. Called with --holdfast BINARY and, as usual with unittest, the names of
single tests. Exits with 77 (skipped, for CTest) where every test was skipped.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from dataclasses import dataclass
from pathlib import Path

SKIPPED = 77
HANG_S = 120  # a launch of these small networks takes seconds, a multiple on a loaded machine; more is a hang


def narrow(data: str = "synthetic:47", **changes) -> list[str]:
    """Flags of a small run with all that is odd: 5 replicas, 4 steps an epoch, a last batch of 2 samples (3 replicas get none), and
    9 test images in batches of 2. narrow(lr=1) is the same with --lr 1.
    """
    flags = {"data": data, "model": "resnet18", "width": 4, "replicas": 5, "batch_size": 3, "threads": 1, "device": "cpu"}
    flags |= {"eval_batch_size": 2, "lr": 0.05, "lr_step_size": 2, "progress": "never"} | changes
    return [part for name, value in flags.items() for part in ("--" + name.replace("_", "-"), str(value))]


NARROW = narrow()
NARROW_STEPS_PER_EPOCH = 4

binary = Path()
python_with_h5py = sys.executable
library_of_other_versions = Path()


@dataclass
class Ended:
    command: list
    code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout + self.stderr

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.command))}\nended with code {self.code}\n{self.stdout}\n{self.stderr}"


def environment(extra: dict) -> dict:
    """That of the test without what would steer the program: its own variables, and those of a batch job around the test."""
    steering = ("HOLDFAST_", "SLURM_", "OMPI_", "PMIX_", "PMI_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return plain | as_root | {name: str(value) for name, value in extra.items()}


def mpirun(*contexts: list) -> list:
    """A command line of mpirun; each context is ["-np", N, PROGRAM, ...]."""
    command = [os.environ.get("MPIEXEC", "mpirun"), "--oversubscribe", "--bind-to", "none"]
    for number, context in enumerate(contexts):
        command += ([":"] if number else []) + [str(part) for part in context]
    return command


class Launch:
    """A running launch. All its processes carry a variable of their own, by which they are found again."""

    MARK = "END_TO_END_LAUNCH"

    def __init__(self, command: list, env: dict, cwd: Path | None):
        self.command = [str(part) for part in command]
        self.mark = f"{self.MARK}={uuid.uuid4()}"
        self.output = [tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")]
        self.process = subprocess.Popen(
            self.command,
            env=environment(env | dict([self.mark.split("=")])),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self.output[0],
            stderr=self.output[1],
            start_new_session=True,
        )

    def processes(self) -> dict[int, int | None]:
        """Living processes and their ranks (None: mpirun itself, or a launch without one)."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                if not folder.name.isdigit() or (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    continue
                variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except (OSError, IndexError):
                continue  # it has just ended
            if self.mark in variables:
                rank = [value[21:] for value in variables if value.startswith("OMPI_COMM_WORLD_RANK=")]
                found[int(folder.name)] = int(rank[0]) if rank else None
        return found

    def signal_rank_in(self, run_dir: Path, step: int, rank: int, number: signal.Signals) -> None:
        """Once the log tells of `step`. Looks the process up before, which takes as long as a few steps."""
        self.wait_for("the first step", lambda: last_step(run_dir) >= 0)
        pids = [pid for pid, of_rank in self.processes().items() if of_rank == rank]
        self.wait_for(f"step {step}", lambda: last_step(run_dir) >= step)
        assert pids, f"no process of rank {rank} is there\n{self.finish()}"
        os.kill(pids[0], number)

    def wait_for(self, what: str, condition) -> None:
        """Until the condition holds. Fails if the launch ends before."""
        deadline = time.monotonic() + HANG_S
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"ended before {what}: {self.finish()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"still waiting for {what}: {self.finish(timeout_s=0)}")
            time.sleep(0.002)

    def wait_for_message(self, text: str) -> None:
        """Until stderr has it, or the launch ends."""
        deadline = time.monotonic() + HANG_S
        while self.process.poll() is None and text.encode() not in os.pread(self.output[1].fileno(), 1 << 20, 0):
            if time.monotonic() > deadline:
                raise AssertionError(f"still waiting for '{text}': {self.finish(timeout_s=0)}")
            time.sleep(0.002)

    def finish(self, timeout_s: float = HANG_S) -> Ended:
        try:
            code = self.process.wait(timeout_s)
            hung = ""
        except subprocess.TimeoutExpired:
            hung = f"still running after {timeout_s:.0f} s; killed"
            self.kill()
            code = self.process.wait()
        texts = []
        for file in self.output:
            with file:
                file.seek(0)
                texts.append(file.read())
        ended = Ended(self.command, code, *texts)
        if hung:
            raise AssertionError(f"{hung}: {ended}")
        return ended

    def left_over(self, grace_s: float = 5) -> dict:
        """Processes that are still there after `grace_s`."""
        deadline = time.monotonic() + grace_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def kill(self) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def start(*arguments, ranks: int | None = None, env: dict = {}, cwd: Path | None = None) -> Launch:
    """`holdfast ARGUMENTS`, under mpirun if `ranks` is given."""
    program = [binary, *arguments]
    return Launch(program if ranks is None else mpirun(["-np", ranks, *program]), env, cwd)


def run(*arguments, ranks: int | None = None, env: dict = {}, cwd: Path | None = None) -> Ended:
    return start(*arguments, ranks=ranks, env=env, cwd=cwd).finish()


def checkpoints(run_dir: Path) -> dict[int, Path]:
    """Step to file, ascending."""
    return {int(path.stem[5:]): path for path in sorted((run_dir / "checkpoints").glob("step-*.h5"))}


def last_step(run_dir: Path) -> int:
    """The last step that metrics.jsonl tells of, -1 before the first."""
    try:
        with (run_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            rows = file.read().decode()
    except FileNotFoundError:
        return -1
    steps = re.findall(r'"step":(\d+),"event":"step"', rows)
    return int(steps[-1]) if steps else -1


def train_with_checkpoints(run_dir: Path, steps: set[int], *arguments, ranks: int) -> Ended:
    """An undisturbed run that has the checkpoints of these steps, all of them ends of epochs. A checkpoint that is due while the
    one before is being written comes a step or more later, so a busy machine may need several tries.
    """
    for _ in range(20):
        ended = run("train", *arguments, "--run", run_dir, "--keep", 100, "--save-every-epochs", 1, ranks=ranks)
        assert ended.code == 0, ended
        if steps <= set(checkpoints(run_dir)):
            return ended
        shutil.rmtree(run_dir)
    raise AssertionError(f"no run had checkpoints of the steps {sorted(steps)}")


def inspect(path: Path) -> dict:
    ended = run("inspect", path, "--json")
    assert ended.code == 0, ended
    return json.loads(ended.stdout)


def epoch_lines(ended: Ended) -> list[str]:
    """Without what a clock measured."""
    lines = [line for line in ended.stdout.splitlines() if re.match(r"\[CPU0\] Epoch ", line)]
    return [re.sub(r"Time: .*?Data wait: [^|]*", "", line) for line in lines]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def result_below(run_dir: Path) -> dict[str, bytes]:
    """All files of a run but what even a refused launch leaves: its outcome, and the number it had."""
    return {name: content for name, content in files_below(run_dir).items() if name not in ("outcome.json", "last-writer")}


class TestCase(unittest.TestCase):
    """Gives each test an empty folder of its own, and each class one for what its tests share."""

    longMessage = True
    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        cls.shared_folder = Path(tempfile.mkdtemp(prefix="holdfast-end-to-end-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared_folder, ignore_errors=True)

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-end-to-end-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.launches = []
        self.addCleanup(lambda: [launch.kill() for launch in self.launches])

    def start(self, *arguments, **how) -> Launch:
        self.launches.append(start(*arguments, **how))
        return self.launches[-1]

    def run_ok(self, *arguments, **how) -> Ended:
        ended = run(*arguments, **how)
        self.assertEqual(ended.code, 0, ended)
        return ended

    def assert_fails(self, ended: Ended, code: int, *words: str) -> None:
        self.assertEqual(ended.code, code, ended)
        for word in words:
            self.assertIn(word, ended.text, ended)

    def assert_same_result(self, run_dir: Path, undisturbed: Path) -> None:
        """Same state of the last checkpoint, same bytes of metrics.csv."""
        got, wanted = inspect(run_dir), inspect(undisturbed)
        for key in ("epoch", "step", "parameters_digest", "state_digest"):
            self.assertEqual(got[key], wanted[key], f"{key} of {run_dir}")
        self.assertEqual((run_dir / "metrics.csv").read_bytes(), (undisturbed / "metrics.csv").read_bytes())


class TestCaseWithUndisturbedRun(TestCase):
    """Trains once, with the flags FLAGS of the class and on 2 ranks, what the disturbed runs of its tests must equal."""

    FLAGS: list[str] = []

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = cls.shared_folder / "undisturbed"
        ended = run("train", *cls.FLAGS, "--run", cls.undisturbed, ranks=2)
        assert ended.code == 0, ended


class OnTwoHosts(TestCase):
    """Two network namespaces, whose ranks talk TCP."""

    HOSTS = Path(__file__).resolve().parent / "two-hosts"

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or not shutil.which("ip"):
            self.skipTest("needs root and ip (iproute2) to make network namespaces")
        self.addCleanup(subprocess.run, [self.HOSTS / "up", "down"])
        subprocess.run([self.HOSTS / "up", "down"])
        if subprocess.run([self.HOSTS / "up"]).returncode != 0:
            self.skipTest("cannot make two network namespaces here")

    def options_of_mpirun(self) -> list[str]:
        network = "10.78.0.0/24"
        flags = {"plm_rsh_agent": self.HOSTS / "rsh-agent", "btl": "self,vader,tcp", "mpi_yield_when_idle": 1}
        flags |= {"btl_tcp_if_include": network, "oob_tcp_if_include": network}
        mca = [str(part) for name, value in flags.items() for part in ("--mca", name, value)]
        return [*mca, "--host", "10.78.0.1:2,10.78.0.2:2"]


def main() -> None:
    global binary, python_with_h5py, library_of_other_versions
    default = Path(__file__).resolve().parents[2] / "build" / "bin" / "holdfast"
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--holdfast", type=Path, default=default, help="the program to test (default: %(default)s)")
    parser.add_argument("--h5py-python", default=sys.executable, help="an interpreter with h5py (default: %(default)s)")
    default = default.parents[1] / "tests" / "libother_versions.so"
    parser.add_argument("--other-versions", type=Path, default=default, help="tests/support/other_versions.cpp (default: %(default)s)")
    options, remaining = parser.parse_known_args()
    binary, python_with_h5py = options.holdfast.resolve(), options.h5py_python
    library_of_other_versions = options.other_versions.resolve()
    if not binary.is_file():
        sys.exit(f"{binary} is not there; build it or name it with --holdfast")
    program = unittest.main(module="__main__", argv=[sys.argv[0], *remaining], verbosity=2, exit=False)
    result = program.result
    if result.wasSuccessful() and result.testsRun == 0:
        sys.exit("no test ran")
    if result.wasSuccessful() and len(result.skipped) == result.testsRun:
        sys.exit(SKIPPED)
    sys.exit(not result.wasSuccessful())
