#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong ends all ranks with the right code, one message that names the value, and no process left."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW, Launch, checkpoints, inspect, mpirun, narrow  # noqa: E402

END_S = 5  # from the message of a failing launch to the end of its last process
CIFAR_FILES = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
RECORD_BYTES, RECORDS = 3073, 10_000  # Source: https://www.cs.toronto.edu/~kriz/cifar.html


def write_cifar(folder: Path) -> Path:
    """A complete set of black airplanes (label 0), as holes that take no space."""
    folder.mkdir()
    for name in CIFAR_FILES:
        with open(folder / name, "wb") as file:
            file.truncate(RECORD_BYTES * RECORDS)
    (folder / "batches.meta.txt").write_text("airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n")
    return folder


class ErrorsTest(holdfast_run.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_dir = cls.shared_folder / "run"
        ended = holdfast_run.run("train", *NARROW, "--run", cls.run_dir, "--epochs", 1, ranks=2)
        assert ended.code == 0, ended

    def finish_in_time(self, launch: Launch) -> holdfast_run.Ended:
        """All processes end within END_S of the message."""
        self.addCleanup(launch.kill)
        launch.wait_for_message("error: ")
        begin = time.monotonic()
        # A process that waits for a core as long as it computes takes twice the time. Load is the mean of the last minute.
        limit_s = END_S * max(1, os.getloadavg()[0] / os.cpu_count())
        left = launch.left_over(limit_s)
        took_s = time.monotonic() - begin
        if left:
            launch.kill()
        ended = launch.finish()
        self.assertEqual(left, {}, f"still there {took_s:.1f} s after the message: {ended}")
        return ended

    def assert_launch_fails(self, launch: Launch, code: int, *words: str) -> holdfast_run.Ended:
        ended = self.finish_in_time(launch)
        self.assert_fails(ended, code, *words)
        errors = [line for line in ended.stderr.splitlines() if "error: " in line]
        self.assertEqual(len(errors), 1, f"one message expected: {ended}")
        return ended

    def assert_train_fails(self, arguments: list, code: int, *words: str, ranks: int | None = 2, env: dict = {}) -> None:
        run = self.folder / "new-run"
        if "--run" not in arguments:
            arguments = [*arguments, "--run", run]
        self.assert_launch_fails(holdfast_run.start("train", *arguments, ranks=ranks, env=env), code, *words)
        self.assertFalse(run.exists(), "a run directory was made")


class Arguments(ErrorsTest):
    def test_table(self):
        regular_file = self.folder / "regular-file"
        regular_file.write_text("")
        missing = self.folder / "no-such-folder"
        (self.folder / "empty").mkdir()
        long_name = self.folder / ("x" * 300)
        loop = self.folder / "loop"
        loop.symlink_to(self.folder / "back")
        (self.folder / "back").symlink_to(loop)
        run = self.run_dir
        table = {
            "missing data": (narrow(missing), 93, ["--data", str(missing), "does not exist"]),
            "folder without CIFAR": (narrow(self.folder / "empty"), 93, [str(self.folder / "empty"), "fetch-cifar10"]),
            "data is not HDF5": (narrow(regular_file), 93, [str(regular_file)]),
            "no synthetic images": (narrow("synthetic:0"), 93, ["synthetic:0"]),
            "more ranks than replicas": (narrow(replicas=1), 93, ["2 ranks", "1 replicas", "--replicas"]),
            "another rate at resume": (["--run", run, "--lr", 0.5], 93, [f"{run}: the run has other settings", "lr is 0.05 there and 0.5 here", "--run"]),
            "two other settings": (["--run", run, "--seed", 7, "--width", 8], 93, ["seed is 0 there and 7", "width is 4 there and 8"]),
            "other replicas at resume": (["--run", run, "--replicas", 4], 93, ["replicas is 5 there and 4 here"]),
            "other data at resume": (["--run", run, "--epochs", 2, "--data", "synthetic:48"], 93, ["synthetic:48", "not the run's"]),
            "run below a regular file": ([*NARROW, "--run", regular_file / "run"], 93, [str(regular_file), "--run"]),
            "run is a regular file": ([*NARROW, "--run", regular_file], 93, [str(regular_file), "--run"]),
            "run where nothing can be made": ([*NARROW, "--run", "/proc/no-such/run"], 93, ["/proc/no-such/run", "--run"]),
            "run with a name too long": ([*NARROW, "--run", long_name], 93, [str(long_name), "--run"]),
            "run below a name too long": ([*NARROW, "--run", long_name / "run"], 93, [str(long_name), "--run"]),
            "run in a loop of links": ([*NARROW, "--run", loop], 93, [str(loop), "--run"]),
            "run below a loop of links": ([*NARROW, "--run", loop / "run"], 93, [str(loop), "--run"]),
            "network too wide": (narrow(width=1_000_000), 93, ["--width 1000000", "GB", "lower --width"]),
            "fast reduction on CPUs": (narrow(device="cpu", reduction="fast"), 2, ["--reduction fast"]),
            "low precision on CPUs": (narrow(device="cpu", precision="bf16"), 2, ["--precision bf16"]),
            "missing first weights": (narrow(init_from=missing / "x.h5"), 93, [str(missing / "x.h5")]),
        }
        before = holdfast_run.result_below(run)
        for situation, (arguments, code, words) in table.items():
            with self.subTest(situation):
                self.assert_train_fails(arguments, code, *words)
        self.assertEqual(holdfast_run.result_below(run), before, "a refused launch changed the run")

    def test_reading_commands_of_what_cannot_be_a_path(self):
        loop = self.folder / "loop"
        loop.symlink_to(loop)
        for command in ("inspect", "verify", "eval"):
            for path in (loop, self.folder / ("x" * 300)):
                with self.subTest(f"{command} {path}"):
                    self.assert_fails(holdfast_run.run(command, path), 93, str(path), "does not exist")
        self.assert_fails(holdfast_run.run("bench", "--width", 1_000_000), 93, "--width 1000000", "lower --width")

    def test_reason_is_the_last_line(self):
        missing = self.folder / "no-such-folder"
        for ranks in (2, 4):
            launch = holdfast_run.start("train", *narrow(missing), "--run", self.folder / "run", ranks=ranks)
            ended = self.assert_launch_fails(launch, 93, f"--data {missing} does not exist")
            first, last = ended.stderr.splitlines()[0], ended.stderr.splitlines()[-1]
            self.assertTrue(first.startswith(f"error: --data {missing}"), ended)
            self.assertTrue(last.startswith(f"Ended with exit code 93: --data {missing}"), ended)

    def test_gpus_that_are_not_there(self):
        """On a machine with GPUs they are hidden, as CUDA can."""
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        has_cuda = json.loads(self.run_ok("info", "--json").stdout)["cuda"] != "none"
        why = "sees a GPU" if has_cuda else "built without CUDA"
        self.assert_train_fails(narrow(device="cuda"), 93, "--device cuda", "--device cpu", why, env=hidden)
        for command in (["bench", "--data", "synthetic:8"], ["eval", self.run_dir]):
            launch = holdfast_run.start(*command, "--device", "cuda", ranks=2, env=hidden)
            self.assert_launch_fails(launch, 93, "--device cuda", "--device cpu", why)
        # A job with GPUs that trains on CPUs is a mistake, unless it was said.
        job = hidden | {"SLURM_JOB_GPUS": "0"}
        if has_cuda:
            self.assert_train_fails(narrow(device="auto"), 93, "no rank can use a GPU", "--device cpu", env=job)
        else:
            ended = self.run_ok("train", *narrow(device="auto"), "--dry-run", "--run", self.folder / "x", ranks=2, env=job)
            self.assertIn("warning: there are GPUs here", ended.stderr)
        self.run_ok("train", *narrow(device="cpu"), "--dry-run", "--run", self.folder / "x", ranks=2, env=job)
        if not Path("/proc/driver/nvidia/version").exists():
            self.assert_train_fails(narrow(device="auto", reduction="fast"), 93, "--reduction fast", "CPUs", env=hidden)
            self.assert_train_fails(narrow(device="auto", precision="tf32"), 93, "--precision tf32", "CPUs", env=hidden)

    def test_processes_that_do_not_know_of_each_other(self):
        env = {"SLURM_STEP_NUM_TASKS": 2, "SLURM_PROCID": 0}
        self.assert_train_fails(NARROW, 93, "2 processes", "--mpi=pmix", "mpirun", ranks=None, env=env)
        # One task is one launch, and so is mpirun inside a step.
        self.run_ok("train", *NARROW, "--dry-run", "--run", self.folder / "x", env={"SLURM_STEP_NUM_TASKS": 1})
        self.run_ok("train", *NARROW, "--dry-run", "--run", self.folder / "x", ranks=2, env={"SLURM_STEP_NUM_TASKS": 2})


class Cifar(ErrorsTest):
    def test_complete_set_is_taken(self):
        data = write_cifar(self.folder / "cifar")
        arguments = [*narrow(data, limit_train=8, limit_test=2), "--dry-run", "--run", self.folder / "run"]
        self.run_ok("train", *arguments, ranks=2)

    def test_short_file(self):
        data = write_cifar(self.folder / "cifar")
        os.truncate(data / "data_batch_3.bin", RECORD_BYTES * RECORDS - 1)
        self.assert_train_fails(narrow(data, limit_train=8), 93, str(data / "data_batch_3.bin"), "30729999", "30730000")

    def test_label_10(self):
        data = write_cifar(self.folder / "cifar")
        with open(data / "data_batch_4.bin", "r+b") as file:
            file.seek(RECORD_BYTES * 7)
            file.write(b"\x0a")
        self.assert_train_fails(narrow(data, limit_train=8), 93, str(data / "data_batch_4.bin"), "10", str(RECORD_BYTES * 7))

    def test_missing_file(self):
        data = write_cifar(self.folder / "cifar")
        (data / "test_batch.bin").unlink()
        self.assert_train_fails(narrow(data, limit_train=8), 93, "test_batch.bin")


class RanksThatDiffer(ErrorsTest):
    def launch(self, *contexts: list) -> Launch:
        return Launch(mpirun(*contexts), {}, self.folder)

    def program(self, *arguments) -> list:
        return ["-np", 1, holdfast_run.binary, "train", "--run", self.folder / "run", *arguments]

    def test_another_rate(self):
        launch = self.launch(self.program(*narrow(lr=0.125)), self.program(*narrow(lr=0.25)))
        ended = self.assert_launch_fails(launch, 93, "0.125", "0.25", "lr", "rank 0", "rank 1")
        self.assertNotIn("eval-batch-size", ended.text, "the message lists what does not differ")
        self.assertFalse((self.folder / "run").exists(), "a run directory was made")

    def test_other_times_to_save(self):
        launch = self.launch(self.program(*narrow(save_every_steps=1)), self.program(*narrow(save_every_steps=2)))
        self.assert_launch_fails(launch, 93, "save-every-steps", "rank 0", "rank 1")

    def test_another_run_directory(self):
        other = ["-np", 1, holdfast_run.binary, "train", *NARROW, "--run", self.folder / "other"]
        self.assert_launch_fails(self.launch(self.program(*NARROW), other), 93, "run", "other", "rank 0", "rank 1")

    def test_data_missing_on_one_rank(self):
        for name in ("with", "without"):
            (self.folder / name).mkdir()
        self.run_ok("pack", "synthetic:40", self.folder / "with" / "set.h5")
        contexts = [["--wdir", self.folder / name, *self.program(*narrow("set.h5"))] for name in ("with", "without")]
        self.assert_launch_fails(self.launch(*contexts), 93, "set.h5", "does not exist", "rank 1")
        self.assertFalse((self.folder / "run").exists(), "a run directory was made")

    def test_other_data_of_the_same_name(self):
        for name, source in (("a", "synthetic:40"), ("b", "synthetic:41")):
            (self.folder / name).mkdir()
            self.run_ok("pack", source, self.folder / name / "set.h5")
        digests = []
        for name in ("a", "b"):
            self.run_ok("train", *narrow("set.h5", max_steps=0), "--run", f"run-{name}", cwd=self.folder / name)
            digests.append(inspect(self.folder / name / f"run-{name}")["settings"]["data-digest"])
        contexts = [["--wdir", self.folder / name, *self.program(*narrow("set.h5"))] for name in ("a", "b")]
        self.assert_launch_fails(self.launch(*contexts), 93, "data-digest", *digests, "on rank 0", "on rank 1")
        self.assertFalse((self.folder / "run").exists(), "a run directory was made")

    def test_another_binary(self):
        other = Path(shutil.copy(holdfast_run.binary, self.folder / "holdfast"))
        with open(other, "ab") as file:
            file.write(b"\0")  # changes nothing of what is loaded
        changed = ["-np", 1, other, "train", "--run", self.folder / "run", *NARROW]
        for contexts in ((self.program(*NARROW), changed), (changed, self.program(*NARROW))):
            ended = self.assert_launch_fails(self.launch(*contexts), 93, "programs differ", "on rank 0", "on rank 1", socket.gethostname())
            self.assertEqual(len(set(re.findall("binary with digest ([0-9a-f]{32})", ended.stderr))), 2, ended)
        self.assertFalse((self.folder / "run").exists(), "a run directory was made")

    def test_another_library(self):
        usual = json.loads(self.run_ok("info", "--json").stdout)
        for library, version, said in (("mpi", usual["mpi"], "Open MPI v99.0"), ("libtorch", f"{usual['libtorch']} (loaded)", "99.0 (loaded)")):
            with self.subTest(library):
                context = self.program(*NARROW)
                preloaded = [*context[:2], "env", f"LD_PRELOAD={holdfast_run.library_of_other_versions}", f"OTHER_VERSION_OF={library}", *context[2:]]
                self.assert_launch_fails(self.launch(context, preloaded), 93, "programs differ", version, said, "on rank 0", "on rank 1")
        self.assertFalse((self.folder / "run").exists(), "a run directory was made")

    def test_another_platform(self):
        context = self.program(*NARROW)
        elsewhere = [*context[:2], "env", "ATEN_CPU_CAPABILITY=default", *context[2:]]
        usual = json.loads(self.run_ok("info", "--json").stdout)["fingerprint"]
        if usual["cpu_capability"] == "DEFAULT":
            self.skipTest("this CPU has no vector instructions that could be left away")
        words = ("numeric platforms differ", usual["cpu_capability"], "DEFAULT", "on rank 0", "on rank 1")
        self.assert_launch_fails(self.launch(context, elsewhere), 93, *words)
        self.assertFalse((self.folder / "run").exists(), "a run directory was made")

    def test_usage_error_on_one_rank(self):
        launch = self.launch(self.program(*NARROW), self.program(*NARROW, "--nonsense", 1))
        ended = self.finish_in_time(launch)
        self.assertEqual(ended.code, 2, ended)


class DuringTheRun(ErrorsTest):
    def test_second_launch_on_a_run(self):
        run = self.folder / "run"
        first = self.start("train", *narrow("synthetic:150"), "--run", run, "--epochs", 1000, ranks=2)
        first.wait_for("the first step", lambda: holdfast_run.last_step(run) >= 1)
        second = holdfast_run.start("train", "--run", run, "--epochs", 1001, ranks=2)
        self.assert_launch_fails(second, 94, str(run), "in use by process", "--run")
        at = holdfast_run.last_step(run)
        first.wait_for("steps after the second launch", lambda: holdfast_run.last_step(run) > at + 1)
        os.kill(first.process.pid, signal.SIGUSR1)
        ended = first.finish()
        self.assertEqual(ended.code, 75, ended)
        self.run_ok("verify", run)

    def test_not_a_number(self):
        run = self.folder / "run"
        arguments = narrow(lr=1e30, save_every_steps=1)
        launch = holdfast_run.start("train", *arguments, "--run", run, "--epochs", 3, ranks=2)
        saved = "the checkpoint of step {} is good"
        ended = self.assert_launch_fails(launch, 93, "NaN", "--lr")
        newest = max(checkpoints(run))
        self.assertLess(newest, 5, "it went on for epochs")
        self.assertIn(saved.format(newest), ended.text, ended)
        outcome = json.loads((run / "outcome.json").read_text())
        self.assertEqual(outcome["code"], 93)
        self.assertIn(saved.format(newest), outcome["reason"])
        self.run_ok("verify", run)
        self.assertNotIn("nan", (run / "metrics.csv").read_text().lower())
        # Started again it ends the same way, at once, and still keeps what is good.
        again = holdfast_run.start("train", "--run", run, ranks=3)
        self.assert_launch_fails(again, 93, "NaN", saved.format(newest))
        self.assertEqual(max(checkpoints(run)), newest)

    def test_update_that_overflows(self):
        run = self.folder / "run"
        launch = holdfast_run.start("train", *narrow(lr=3e38, max_steps=1), "--run", run, ranks=2)
        self.assert_launch_fails(launch, 93, "step 1: ", "holds NaN or infinity", "checkpoint of step 0 is good", "--lr")
        self.assertEqual(list(checkpoints(run)), [0])
        self.run_ok("verify", run)

    def test_reader_of_the_output_leaves(self):
        run, undisturbed = self.folder / "run", self.folder / "undisturbed"
        arguments = ["train", *narrow(epochs=2), "--run"]
        self.run_ok(*arguments, undisturbed)
        program = [str(part) for part in (holdfast_run.binary, *arguments, run)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=holdfast_run.environment({})) as process:
            self.addCleanup(process.kill)
            self.assertTrue(process.stdout.readline())
            process.stdout.close()  # as `| head -1` does
            self.assertEqual(process.stderr.read(), b"")
            self.assertEqual(process.wait(holdfast_run.HANG_S), 0)
        self.assert_same_result(run, undisturbed)

    def test_full_log_of_samples(self):
        run, log = self.folder / "run", self.folder / "indices.jsonl"
        limit_kib = 64 * 1024
        with open(log, "wb") as file:
            file.truncate(limit_kib * 1024 - 100)  # a hole; the first step's rows need more than 100 bytes
        limited = ["-np", 2, "bash", "-c", f'ulimit -f {limit_kib} && exec "$@"', "bash"]
        program = [holdfast_run.binary, "train", *NARROW, "--run", run, "--log-indices", log]
        self.assert_launch_fails(Launch(mpirun([*limited, *program]), {}, None), 75, str(log), "--log-indices", "disk full")
        self.assertEqual(json.loads((run / "outcome.json").read_text())["code"], 75)
        self.assertEqual(list(checkpoints(run)), [0])
        self.run_ok("train", "--run", run, "--epochs", 1, ranks=2)

    def test_data_that_change_on_one_rank(self):
        # One host's disk goes bad: each rank has a copy of the data of its own.
        for name in ("a", "b"):
            (self.folder / name).mkdir()
            write_cifar(self.folder / name / "cifar")
        run = self.folder / "run"
        program = ["-np", 1, holdfast_run.binary, "train", *narrow("cifar", limit_train=30, limit_test=4), "--run", run]
        options = ["--epochs", 100_000, "--save-every-epochs", 0, "--check-replicas-every", 2]
        launch = Launch(mpirun(*(["--wdir", self.folder / name, *program, *options] for name in ("a", "b"))), {}, None)
        launch.wait_for("a step", lambda: holdfast_run.last_step(run) >= 4)
        with open(self.folder / "b" / "cifar" / "data_batch_1.bin", "r+b") as file:
            file.seek(RECORD_BYTES * 29 + 1000)
            file.write(b"\x01")
        words = ("the data have changed under the run", "nothing of it was saved", "[rank 1, ")
        self.assert_launch_fails(launch, 93, *words)
        self.assertEqual(list(checkpoints(run)), [0])
        outcome = json.loads((run / "outcome.json").read_text())
        self.assertEqual(outcome["code"], 93)

    def test_checking_replicas_changes_nothing(self):
        runs = [self.folder / "plain", self.folder / "checked"]
        for run, options in zip(runs, ([], ["--check-replicas-every", 1])):
            self.run_ok("train", *narrow(epochs=2), "--run", run, *options, ranks=2)
        self.assert_same_result(*runs)


if __name__ == "__main__":
    holdfast_run.main()
