#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The job scripts on a real SLURM cluster: whatever happens to a job, it ends with the bytes of a run that nobody disturbed, or
stays ended where starting again does not help.

Most of the time is waiting, so all cases of a class run at the same time, in one cluster.
"""

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import checkpoints, last_step, narrow  # noqa: E402
from slurm_lab import SlurmLab  # noqa: E402

PATIENCE_S = 240  # for anything that takes seconds on an idle machine
SCRIPTS = Path(__file__).resolve().parents[2] / "jobs"
FLAGS = narrow("synthetic:45", replicas=3, eval_batch_size=9, save_every_epochs=2, epochs=10_000_000)
QUICK_ENDS = {"OMPI_MCA_odls_base_sigkill_timeout": 2}  # mpirun sleeps twice this time after every end with a code


class Job:
    """A job of one of the scripts. It trains for ever until `end_at` is called: so it cannot be over before it is disturbed."""

    def __init__(self, lab: SlurmLab, folder: Path, nodes: int = 2, options=(), env: dict = {}, script="train.sbatch"):
        self.lab, self.folder = lab, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.run_dir, self.output, self.limits = folder / "run", folder / "out", folder / "limits.toml"
        self.limits.touch()
        self.options = [f"--nodes={nodes}", f"--ntasks-per-node={2 // nodes}", f"--output={self.output}", *options]
        self.script = script
        self.env = {"HOLDFAST_RUN": self.run_dir} | env
        self.submit()

    def submit(self) -> None:
        # From another folder than the script's and the run's: SLURM runs a copy of the script.
        submit = ["sbatch", "--parsable", "--chdir=/", *self.options, SCRIPTS / self.script]
        training = [] if self.script == "eval.sbatch" else [*FLAGS, "--config", self.limits]
        self.id = self.lab.call(*submit, *training, env=self.env)

    def said(self, pattern: str) -> bool:
        return self.output.exists() and re.search(pattern, self.output.read_text(errors="replace"), re.MULTILINE) is not None

    def wait_for(self, what: str, condition) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{self}: waited in vain for {what}")
            time.sleep(0.2)

    def wait_until_said(self, pattern: str) -> None:
        self.wait_for(repr(pattern), lambda: self.said(pattern))

    def wait_until_training(self, step: int = 12) -> None:
        self.wait_for(f"step {step}", lambda: last_step(self.run_dir) >= step)

    def wait_until_state(self, *states: str) -> None:
        self.wait_for(" or ".join(states), lambda: self.lab.job(self.id).get("JobState") in states)

    def warn(self) -> None:
        self.lab.call("scancel", "--batch", "--signal=USR1", self.id)

    def end_at(self, steps_more: int) -> None:
        """A later start ends with this step of the run. It is read only when the next one starts."""
        new = self.limits.with_suffix(".new")
        new.write_text(f"max-steps = {last_step(self.run_dir) + steps_more}\n")
        new.rename(self.limits)

    def processes(self) -> dict[int, int]:
        """Its living ranks: rank to process."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                if not folder.name.isdigit() or b"\0train\0--run\0" + bytes(self.run_dir) + b"\0" not in (folder / "cmdline").read_bytes():
                    continue
                variables = dict(part.split("=", 1) for part in (folder / "environ").read_text(errors="replace").split("\0") if "=" in part)
            except OSError:
                continue  # it has just ended
            rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("PMIX_RANK"))
            if rank is not None and Path(os.readlink(folder / "exe")).name == "holdfast":
                found[int(rank)] = int(folder.name)
        return found

    def outcome(self) -> dict:
        return json.loads((self.run_dir / "outcome.json").read_text())

    def __str__(self) -> str:
        output = self.output.read_text(errors="replace") if self.output.exists() else "(no output)"
        output = re.sub(r"(?m)^\[CPU0\] Epoch .*\n", "", output)
        queue = self.lab.call("scontrol", "show", "job", self.id, check=False)
        return f"job {self.id} in {self.folder}\n{output[-6000:]}\n{queue}"


class SlurmTest(holdfast_run.TestCase):
    """Its cases are the methods case_*: each gets a test of the same name, which waits for its end."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        environment = holdfast_run.environment({"OMP_NUM_THREADS": 1, "OMP_WAIT_POLICY": "passive"})
        environment["PATH"] = f"{holdfast_run.binary.parent}:{environment['PATH']}:/usr/sbin"
        # The two nodes of a job share this machine's cores with those of all the others.
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
        cls.lab = SlurmLab(cls.shared_folder / "lab", environment)
        cls.addClassCleanup(cls.lab.stop)
        cls.undisturbed_lock = threading.Lock()
        cls.undisturbed = {}
        pool = ThreadPoolExecutor(max_workers=32)
        cls.addClassCleanup(pool.shutdown)
        names = [name[len("case_"):] for name in dir(cls) if name.startswith("case_")]
        cls.running = {name: pool.submit(cls.timed, name) for name in names}

    @classmethod
    def timed(cls, name: str) -> None:
        start = time.monotonic()
        try:
            getattr(cls(f"test_{name}"), f"case_{name}")()
        finally:
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    def __init_subclass__(cls):
        for name in [name[len("case_"):] for name in vars(cls) if name.startswith("case_")]:
            setattr(cls, f"test_{name}", lambda self, name=name: self.running[name].result())

    def job(self, name: str, **how) -> Job:
        return Job(self.lab, self.shared_folder / name, **how)

    def undisturbed_until(self, step: int, seed: int) -> Path:
        """A run of one rank up to this step, made once for all that end there."""
        run_dir = self.shared_folder / f"undisturbed-{seed}-{step}"
        with self.undisturbed_lock:
            if not run_dir.exists():
                self.run_ok("train", *FLAGS, "--seed", seed, "--max-steps", step, "--run", run_dir, ranks=1)
        return run_dir

    def assert_finished_as_if_undisturbed(self, job: Job, starts: int, seed: int = 0) -> None:
        job.wait_until_state("COMPLETED")
        self.assertTrue(job.said("ended with code 0$"), job)
        self.assertEqual(job.outcome()["code"], 0)
        log = job.output.read_text(errors="replace")
        self.assertEqual(re.findall(r"start (\d+) of", log), [str(start + 1) for start in range(starts)], "not one log of all starts")
        self.assertEqual(log.count("Resuming training from snapshot"), starts - 1, job)
        self.assertEqual(list(job.run_dir.glob("writer-*")), [], "the run was not released")
        self.assert_same_result(job.run_dir, self.undisturbed_until(max(checkpoints(job.run_dir)), seed))
        self.run_ok("verify", job.run_dir)

    def assert_stays_ended(self, job: Job, *states: str) -> None:
        job.wait_until_state(*states)
        time.sleep(8)  # a requeued job would start within this time
        self.assertIn(self.lab.job(job.id)["JobState"], states, job)
        self.assertFalse(job.said("start 2 of"), job)


class Essential(SlurmTest):
    def case_time_limit_on_two_nodes_by_mpirun(self):
        job = self.job("limit", env={"HOLDFAST_LAUNCHER": "mpirun"}, options=["--time=1", "--signal=B:USR1@10"])
        job.wait_until_said("ended with code 75$")
        self.assertIn("signal 10", job.outcome()["reason"])
        job.end_at(20)
        self.lab.call("scontrol", "update", f"JobId={job.id}", "TimeLimit=10")
        self.assert_finished_as_if_undisturbed(job, starts=2)

    def case_warning_on_two_nodes_by_srun(self):
        job = self.job("it's a \"name\" with $blanks", env={"HOLDFAST_LAUNCHER": "srun"})
        job.wait_until_training()
        job.end_at(100)
        job.warn()
        job.wait_until_said("ended with code 75$")
        self.assert_finished_as_if_undisturbed(job, starts=2)

    def kill(self, launcher: str, *ranks: int) -> None:
        job = self.job(f"kill-{launcher}-{len(ranks)}", env={"HOLDFAST_LAUNCHER": launcher, **QUICK_ENDS})
        job.wait_until_training()
        processes = job.processes()
        self.assertEqual(sorted(processes), [0, 1], job)
        job.end_at(100)
        for rank in ranks:
            os.kill(processes[rank], signal.SIGKILL)
        job.wait_until_said("ended with code 137$")
        self.assertFalse((job.run_dir / "outcome.json").exists(), "told apart by what was not written")
        self.assert_finished_as_if_undisturbed(job, starts=2)

    def case_one_rank_is_killed_under_mpirun(self):
        self.kill("mpirun", 1)

    def case_one_rank_is_killed_under_srun(self):
        self.kill("srun", 1)

    def one_rank_ends_with_93(self, launcher: str) -> None:
        # Stands for the program where jobs look for it: rank 1 has other settings.
        folder = self.shared_folder / f"93-{launcher}"
        (folder / "bin").mkdir(parents=True)
        (folder / "share" / "holdfast").mkdir(parents=True)
        (folder / "share" / "holdfast" / "jobs").symlink_to(SCRIPTS)
        program = folder / "bin" / "holdfast"
        program.write_text(f'#!/bin/bash\nif [[ ${{OMPI_COMM_WORLD_RANK:-$PMIX_RANK}} == 1 ]]; then export HOLDFAST_SEED=7; fi\nexec {holdfast_run.binary} "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}:{self.lab.environment['PATH']}"
        job = self.job(folder.name, env={"HOLDFAST_LAUNCHER": launcher, "PATH": path, **QUICK_ENDS})
        self.assert_stays_ended(job, "FAILED")
        self.assertTrue(job.said("ended with code 93$"), job)
        self.assertTrue(job.said("differ between ranks"), job)
        self.assertEqual(self.lab.job(job.id)["ExitCode"], "93:0")

    def case_one_rank_ends_with_93_under_mpirun(self):
        self.one_rank_ends_with_93("mpirun")

    def case_array(self):
        job = self.job("array", script="array.sbatch", nodes=1, options=["--array=3-5", "--ntasks-per-node=1", f"--output={self.shared_folder}/array-%a.out"])
        tasks = []
        for seed in (3, 4, 5):
            task = Job.__new__(Job)
            task.__dict__ |= job.__dict__ | {"id": f"{job.id}_{seed}", "run_dir": Path(f"{job.run_dir}-{seed}")}
            task.output = self.shared_folder / f"array-{seed}.out"
            tasks.append(task)
        for task in tasks:
            task.wait_until_training()
        disturbed = tasks[1]
        disturbed.end_at(100)
        disturbed.warn()
        disturbed.wait_until_said("start 2 of")
        max(tasks, key=lambda task: last_step(task.run_dir)).end_at(100)  # one file for all
        for task in (tasks[0], tasks[2]):
            self.assertEqual(self.lab.job(task.id)["JobState"], "RUNNING", task)
            self.assertFalse(task.said("ended with"), task)
            task.warn()
        for seed, task in enumerate(tasks, 3):
            self.assert_finished_as_if_undisturbed(task, starts=2, seed=seed)

    def cancel(self, launcher: str) -> None:
        job = self.job(f"cancel-{launcher}", env={"HOLDFAST_LAUNCHER": launcher})
        job.wait_until_training()
        self.lab.call("scancel", job.id)
        job.wait_until_said("SLURM is ending it")
        self.assert_stays_ended(job, "CANCELLED")
        self.assertEqual(job.outcome()["code"], 75)
        self.assertGreater(job.outcome()["saved_step"], 12)

    def case_cancelled_under_mpirun(self):
        self.cancel("mpirun")

    def case_max_restarts_and_going_on_by_hand(self):
        job = self.job("restarts", nodes=1, env={"HOLDFAST_MAX_RESTARTS": 0})
        job.wait_until_training()
        job.end_at(100)
        job.warn()
        self.assert_stays_ended(job, "FAILED")
        self.assertTrue(job.said(r"not put back after 0 restarts \(HOLDFAST_MAX_RESTARTS\)"), job)
        command = re.search("^HOLDFAST_RUN=.* sbatch .*$", job.output.read_text(), re.MULTILINE).group()
        self.lab.call("bash", "-c", command.replace(" sbatch ", f" sbatch --wait --chdir=/ --output='{job.folder}/second' "))
        self.assertEqual(job.outcome()["code"], 0)
        self.assert_same_result(job.run_dir, self.undisturbed_until(max(checkpoints(job.run_dir)), 0))


if __name__ == "__main__":
    holdfast_run.main()
