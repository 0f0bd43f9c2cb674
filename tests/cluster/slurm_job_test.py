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
import subprocess
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
BOTH_LAUNCHERS = ("mpirun", "srun")
QUICK_ENDS = {"OMPI_MCA_odls_base_sigkill_timeout": 2}  # mpirun sleeps twice this time after every end with a code


class Job:
    """A job of one of the scripts. It trains for ever until `end_at` is called: so it cannot be over before it is disturbed."""

    def __init__(self, lab: SlurmLab, folder: Path, nodes: int = 2, options=(), env: dict = {}, script="train.sbatch", limits: str = ""):
        self.lab, self.folder = lab, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.run_dir, self.output, self.limits = folder / "run", folder / "out", folder / "limits.toml"
        self.limits.write_text(limits)
        self.options = [f"--nodes={nodes}", f"--ntasks-per-node={2 // nodes}", f"--output={self.output}", *options]
        self.script = script
        self.env = {"HOLDFAST_RUN": self.run_dir} | env
        self.submit()

    def command(self, *more_options) -> list:
        # In another folder than the script's and the run's: SLURM runs a copy of the script.
        arguments = ["--data", "synthetic:45"] if self.script == "eval.sbatch" else [*FLAGS, "--config", self.limits]
        return ["sbatch", "--parsable", "--chdir=/", *self.options, *more_options, SCRIPTS / self.script, *arguments]

    def submit(self) -> None:
        self.id = self.lab.call(*self.command(), env=self.env)

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

    def kill(self, ranks: list[int]) -> None:
        processes = self.processes()
        assert set(ranks) <= set(processes), f"{self}: ranks {list(processes)} are there"
        for rank in ranks:
            os.kill(processes[rank], signal.SIGKILL)

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
        pool = ThreadPoolExecutor(max_workers=10)
        cls.addClassCleanup(pool.shutdown)
        chosen = [argument.partition(".test_")[2] for argument in sys.argv if argument.startswith(f"{cls.__name__}.")]
        names = chosen or [name[len("case_"):] for name in dir(cls) if name.startswith("case_")]
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


    def warn(self, name: str, **how) -> None:
        job = self.job(name, **how)
        job.wait_until_training()
        job.end_at(100)
        job.warn()
        job.wait_until_said("ended with code 75$")
        self.assert_finished_as_if_undisturbed(job, starts=2)

    def time_limit(self, name: str, **how) -> None:
        """Whose warning comes up to a minute early."""
        how["env"]["HOLDFAST_SEED"] = 6  # that variables reach the other node is not a matter of course
        job = self.job(name, options=["--time=1", "--signal=B:USR1@10"], **how)
        job.wait_until_said("ended with code 75$")
        self.assertIn("asked to stop by", job.outcome()["reason"])
        job.end_at(20)
        self.assert_finished_as_if_undisturbed(job, starts=2, seed=6)

    def kill(self, launcher: str, ranks: list[int], nodes: int = 2) -> None:
        job = self.job(f"kill-{launcher}-{len(ranks)}-{nodes}", nodes=nodes, env={"HOLDFAST_LAUNCHER": launcher, **QUICK_ENDS})
        job.wait_until_training()
        job.end_at(100)
        job.kill(ranks)
        job.wait_until_said("ended with code 137$")
        self.assertFalse((job.run_dir / "outcome.json").exists(), "told apart by what was not written")
        self.assert_finished_as_if_undisturbed(job, starts=2)

    def stand_in(self, name: str, text: str) -> dict:
        """A program in the place of holdfast, as jobs look for it; the variables of a job that finds it there."""
        prefix = self.shared_folder / f"{name}-prefix"
        (prefix / "bin").mkdir(parents=True)
        (prefix / "share" / "holdfast").mkdir(parents=True)
        (prefix / "share" / "holdfast" / "jobs").symlink_to(SCRIPTS)
        program = prefix / "bin" / "holdfast"
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:{self.lab.environment['PATH']}"}

    def one_rank_ends_with_93(self, launcher: str) -> None:
        other_settings = 'if [[ ${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-}} == 1 ]]; then export HOLDFAST_SEED=7; fi'
        env = self.stand_in(f"93-{launcher}", f'{other_settings}\nexec {holdfast_run.binary} "$@"')
        job = self.job(f"93-{launcher}", env={"HOLDFAST_LAUNCHER": launcher, **QUICK_ENDS, **env})
        self.assert_stays_ended(job, "FAILED")
        self.assertTrue(job.said("ended with code 93$"), job)
        self.assertTrue(job.said("differ between ranks"), job)
        self.assertEqual(self.lab.job(job.id)["ExitCode"], "93:0")

    def cancel(self, launcher: str) -> None:
        job = self.job(f"cancel-{launcher}", env={"HOLDFAST_LAUNCHER": launcher})
        job.wait_until_training()
        self.lab.call("scancel", job.id)
        job.wait_until_said("SLURM is ending it")
        self.assert_stays_ended(job, "CANCELLED")
        self.assertEqual(job.outcome()["code"], 75)
        self.assertGreater(job.outcome()["saved_step"], 12)


class Essential(SlurmTest):
    def case_time_limit_by_mpirun(self):
        self.time_limit("time 'limit'", env={"HOLDFAST_LAUNCHER": "mpirun"})

    def case_warning_on_two_nodes_by_srun(self):
        self.warn("it's a \"name\" with $blanks", env={"HOLDFAST_LAUNCHER": "srun"})

    def case_one_rank_is_killed_under_mpirun(self):
        self.kill("mpirun", [1])

    def case_one_rank_is_killed_under_srun(self):
        self.kill("srun", [1])

    def case_one_rank_ends_with_93_under_mpirun(self):
        self.one_rank_ends_with_93("mpirun")

    def case_array(self):
        options = ["--array=3-5", "--ntasks-per-node=1", f"--output={self.shared_folder}/array's %a.out"]
        job = self.job("array's \"folder\"", script="array.sbatch", nodes=1, options=options)
        tasks = []
        for seed in (3, 4, 5):
            task = Job.__new__(Job)
            task.__dict__ |= job.__dict__ | {"id": f"{job.id}_{seed}", "run_dir": Path(f"{job.run_dir}-{seed}")}
            task.output = self.shared_folder / f"array's {seed}.out"
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

    def case_cancelled_under_mpirun(self):
        self.cancel("mpirun")

    def case_finished_run_is_lengthened_and_killed(self):
        """What its outcome.json says then is of the launch before."""
        job = self.job("lengthened", nodes=1, env={"HOLDFAST_LAUNCHER": "srun"}, limits="max-steps = 10\n")
        job.wait_until_state("COMPLETED")
        self.assertEqual(job.outcome()["code"], 0)
        job.limits.write_text("max-steps = 10000000\n")
        job.submit()
        job.wait_until_training()
        job.end_at(100)
        job.kill([0, 1])
        job.wait_until_said(r"(?s)ended with code 0$.* ended with code \d+$")
        self.assertTrue(job.said("ended with code 137$"), job)
        job.wait_until_state("COMPLETED")
        self.assertEqual(self.lab.job(job.id)["Restarts"], "1", job)
        self.assertEqual(job.outcome()["code"], 0)
        self.assert_same_result(job.run_dir, self.undisturbed_until(max(checkpoints(job.run_dir)), 0))

    def case_max_restarts_and_going_on_by_hand(self):
        job = self.job("by 'hand' $HOME", nodes=1, env={"HOLDFAST_MAX_RESTARTS": 0})
        job.wait_until_training()
        job.end_at(100)
        job.warn()
        self.assert_stays_ended(job, "FAILED")
        self.assertTrue(job.said(r"not put back after 0 restarts \(HOLDFAST_MAX_RESTARTS\)"), job)
        command = re.search("^HOLDFAST_RUN=.* sbatch .*$", job.output.read_text(), re.MULTILINE).group()
        self.lab.call("bash", "-c", command.replace(" sbatch ", " sbatch --wait --chdir=/ --output=/dev/null "))
        self.assertEqual(job.outcome()["code"], 0)
        self.assert_same_result(job.run_dir, self.undisturbed_until(max(checkpoints(job.run_dir)), 0))


class Rare(SlurmTest):
    def case_warning_on_one_node_by_mpirun(self):
        self.warn("one-mpirun", nodes=1, env={"HOLDFAST_LAUNCHER": "mpirun"})

    def case_warning_on_one_node_by_srun(self):
        self.warn("one-srun", nodes=1, env={"HOLDFAST_LAUNCHER": "srun"})

    def case_time_limit_by_srun(self):
        self.time_limit("limit", env={"HOLDFAST_LAUNCHER": "srun"})

    def warn_early(self, delay_ms: int, launcher: str) -> None:
        job = self.job(f"early-{delay_ms}", nodes=1, env={"HOLDFAST_LAUNCHER": launcher}, limits="max-steps = 100\n")
        job.wait_for("its first line", lambda: job.said("start 1 of"))
        time.sleep(delay_ms / 1000)
        job.warn()
        job.wait_until_said("ended with code 75$")
        self.assertLess(job.outcome()["step"], 20, job)
        self.assert_finished_as_if_undisturbed(job, starts=2)

    def case_warning_at_the_first_line(self):
        self.warn_early(0, "mpirun")

    def case_warning_after_200_ms(self):
        self.warn_early(200, "srun")

    def case_warning_after_500_ms(self):
        self.warn_early(500, "mpirun")

    def case_warning_after_1000_ms(self):
        self.warn_early(1000, "srun")

    def case_all_ranks_are_killed_under_mpirun(self):
        self.kill("mpirun", [0, 1])

    def case_all_ranks_are_killed_under_srun(self):
        self.kill("srun", [1, 0])

    def case_one_rank_is_killed_on_one_node_under_mpirun(self):
        self.kill("mpirun", [1], nodes=1)

    def case_one_rank_is_killed_on_one_node_under_srun(self):
        self.kill("srun", [0], nodes=1)

    def case_one_rank_ends_with_93_under_srun(self):
        self.one_rank_ends_with_93("srun")

    def case_only_the_launcher_tells_of_93(self):
        """One rank aborts with 93, the others are killed for it, and there is no outcome.json."""
        for launcher in BOTH_LAUNCHERS:
            env = self.stand_in(f"abort-{launcher}", f'[[ $1 == --version ]] || exec {failing_rank}')
            job = self.job(f"abort-{launcher}", env={"HOLDFAST_LAUNCHER": launcher, **QUICK_ENDS, **env})
            self.assert_stays_ended(job, "FAILED")
            self.assertEqual(self.lab.job(job.id)["ExitCode"], "93:0", job)

    def case_cancelled_under_srun(self):
        self.cancel("srun")

    def case_cancelled_after_the_warning(self):
        job = self.job("warned-cancelled")
        job.wait_until_training()
        for pid in job.processes().values():  # so that the warning is not obeyed before
            os.kill(pid, signal.SIGSTOP)
        job.warn()
        job.wait_for("the drain file", (job.run_dir / "drain").exists)
        self.lab.call("scancel", job.id)
        self.assert_stays_ended(job, "CANCELLED")

    def case_requeued_by_a_person(self):
        for launcher in BOTH_LAUNCHERS:
            job = self.job(f"requeue-{launcher}", env={"HOLDFAST_LAUNCHER": launcher})
            job.wait_until_training()
            job.end_at(100)
            self.lab.call("scontrol", "requeue", job.id)
            job.wait_until_said("SLURM has put it back already")
            self.assert_finished_as_if_undisturbed(job, starts=2)
            self.assertEqual(self.lab.job(job.id)["Restarts"], "1")

    def case_preempted_by_a_higher_partition(self):
        for launcher in BOTH_LAUNCHERS:
            job = self.job(f"preempted-{launcher}", options=["--partition=contested", "--exclusive"], env={"HOLDFAST_LAUNCHER": launcher})
            job.wait_until_training()
            job.end_at(100)
            self.lab.call("sbatch", "--wait", "--partition=urgent", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1")
            self.assert_finished_as_if_undisturbed(job, starts=2)
            self.assertEqual(self.lab.job(job.id)["Restarts"], "1")

    def lose_a_node(self, launcher: str) -> None:
        """SLURM takes a node for lost whose ranks go on. The job's next start runs beside them."""
        job = self.job(f"lost-{launcher}", nodes=1, options=["--partition=fragile"], env={"HOLDFAST_LAUNCHER": launcher})
        job.wait_until_training()
        old = job.processes()
        host = self.lab.job(job.id)["BatchHost"]
        job.end_at(300)
        self.lab.lose(host)
        job.wait_for("the job's second start", lambda: self.lab.job(job.id).get("Restarts") == "1")
        self.assertTrue(all(Path(f"/proc/{pid}").exists() for pid in old.values()), "the old ranks should live")
        job.wait_until_state("COMPLETED")
        for pid in old.values():
            job.wait_for("the end of the old ranks", lambda pid=pid: not Path(f"/proc/{pid}").exists())
        self.lab.bring_back(host)
        self.assertEqual(job.outcome()["code"], 0)
        if launcher == "mpirun":  # the old srun ends the step of the same number, which is the new start's
            self.assertEqual(self.lab.job(job.id)["Restarts"], "1", job)
        self.assertFalse(job.said("start 4 of"), job)
        self.assert_same_result(job.run_dir, self.undisturbed_until(max(checkpoints(job.run_dir)), 0))
        self.run_ok("verify", job.run_dir)

    def case_node_taken_for_lost_while_its_ranks_live(self):
        for launcher in BOTH_LAUNCHERS:
            self.lose_a_node(launcher)

    def two_nodes_then_one(self, launcher: str) -> None:
        job = self.job(f"two-then-one-{launcher}", env={"HOLDFAST_LAUNCHER": launcher})
        job.wait_until_training()
        job.end_at(100)
        job.warn()
        job.wait_until_state("PENDING")
        self.lab.call("scontrol", "update", f"JobId={job.id}", "NumNodes=1", "NumTasks=1")
        self.assert_finished_as_if_undisturbed(job, starts=2)
        self.assertTrue(job.said(r"1 ranks on n\d by .* start 2 of"), job)

    def case_begun_on_two_nodes_and_resumed_on_one_by_mpirun(self):
        self.two_nodes_then_one("mpirun")

    def case_begun_on_two_nodes_and_resumed_on_one_by_srun(self):
        self.two_nodes_then_one("srun")

    def case_launcher_cannot_start_the_ranks(self):
        job = self.job("no-ranks", env={"HOLDFAST_LAUNCHER": "mpirun", "OMPI_MCA_plm": "none"})
        self.assert_stays_ended(job, "FAILED")
        self.assertTrue(job.said("did not even get to the run"), job)

    def case_begun_by_one_job_and_resumed_by_another(self):
        job = self.job("resubmitted", nodes=1, env={"HOLDFAST_MAX_RESTARTS": 0, "HOLDFAST_LAUNCHER": "srun"})
        job.wait_until_training()
        job.end_at(100)
        job.warn()
        job.wait_until_state("FAILED")
        job.options[:2] = ["--nodes=3", "--ntasks-per-node=1"]
        job.submit()
        job.wait_until_state("COMPLETED")
        self.assertTrue(job.said("3 ranks on 3 hosts"), job)
        self.assert_same_result(job.run_dir, self.undisturbed_until(max(checkpoints(job.run_dir)), 0))

    def case_restarts_are_bounded(self):
        job = self.job("bounded", nodes=1, env={"HOLDFAST_MAX_RESTARTS": 1, "HOLDFAST_LAUNCHER": "srun"})
        for start in (1, 2):
            job.wait_until_said(f"start {start} of at most 2")
            step = last_step(job.run_dir)
            job.wait_for("a step", lambda: last_step(job.run_dir) > step and len(job.processes()) == 2)
            job.kill([0])
        job.wait_until_state("FAILED")
        self.assertTrue(job.said("not put back after 1 restarts"), job)
        self.assertFalse(job.said("start 3 of"), job)

    def case_second_job_of_a_run(self):
        first = self.job("owner")
        first.wait_until_training()
        for launcher in BOTH_LAUNCHERS:
            second = self.job(f"second-{launcher}", env={"HOLDFAST_RUN": first.run_dir, "HOLDFAST_LAUNCHER": launcher, **QUICK_ENDS})
            self.assert_stays_ended(second, "FAILED")
            self.assertEqual(self.lab.job(second.id)["ExitCode"], "94:0", second)
        self.assertFalse(first.said("ended with"), first)

    def case_mistakes(self):
        """None of them is worth another start."""
        without = self.lab.environment["PATH"].replace(str(holdfast_run.binary.parent), "/nowhere")
        mistakes = {
            "launcher": ({"HOLDFAST_LAUNCHER": "mpiexec.hydra"}, "2:0", "neither mpirun nor srun"),
            "restarts": ({"HOLDFAST_MAX_RESTARTS": "often"}, "2:0", "HOLDFAST_MAX_RESTARTS=often is no number"),
            "path": ({"PATH": without}, "93:0", "no 'holdfast' on PATH"),
            "module": ({"HOLDFAST_MODULE": "no-such-module"}, "93:0", "no-such-module|module: command not found"),
            "flag": ({"HOLDFAST_SEDE": 1, **QUICK_ENDS}, "2:0", "HOLDFAST_SEDE"),
        }
        jobs = {name: self.job(f"mistake-{name}", env=mistake[0]) for name, mistake in mistakes.items()}
        for name, (_, code, words) in mistakes.items():
            self.assert_stays_ended(jobs[name], "FAILED")
            self.assertEqual(self.lab.job(jobs[name].id)["ExitCode"], code, jobs[name])
            self.assertTrue(jobs[name].said(words), jobs[name])

    def case_without_scontrol(self):
        folder = self.shared_folder / "no-scontrol-bin"
        folder.mkdir()
        (folder / "scontrol").write_text("#!/bin/sh\nexit 127\n")
        (folder / "scontrol").chmod(0o755)
        job = self.job("no-scontrol", nodes=1, env={"PATH": f"{folder}:{self.lab.environment['PATH']}"})
        job.wait_until_training()
        job.warn()
        self.assert_stays_ended(job, "FAILED")
        self.assertTrue(job.said("cannot be put back without scontrol"), job)
        self.assertTrue(job.said("^HOLDFAST_RUN=.* sbatch "), job)

    def case_chain_of_jobs_where_none_may_requeue(self):
        job = self.job("chain", nodes=1, options=["--no-requeue", "--dependency=singleton", "--job-name=chain"])
        links = [job.id, *(self.lab.call(*job.command(), env=job.env) for _ in range(2))]
        job.wait_until_training()
        job.end_at(100)
        job.warn()
        for job.id, state in zip(links, ("FAILED", "COMPLETED", "COMPLETED")):
            job.wait_until_state(state)
        self.assertTrue(job.said("^HOLDFAST_RUN=.* sbatch "), job)
        self.assertTrue(job.said("is finished: "), job)
        self.assert_same_result(job.run_dir, self.undisturbed_until(max(checkpoints(job.run_dir)), 0))

    def case_no_warning_before_the_time_limit(self):
        """The program itself knows when its time is up."""
        job = self.job("no-warning", nodes=1, options=["--time=1", "--signal=B:URG@1"])
        job.wait_until_said("ended with code 75$")
        self.assertIn("the time is up", job.outcome()["reason"])
        job.end_at(20)
        self.assert_finished_as_if_undisturbed(job, starts=2)

    def unwarned_time_limit(self, launcher: str) -> None:
        """TERM to everybody, as when a job is cancelled, but this time it is worth going on."""
        job = self.job(f"term-{launcher}", options=["--signal=B:URG@1"], env={"HOLDFAST_LAUNCHER": launcher})
        job.wait_until_training()
        self.lab.call("scontrol", "update", f"JobId={job.id}", "TimeLimit=1")
        job.wait_until_said("ended with code 75$")
        self.assertIn("signal 15", job.outcome()["reason"])
        job.end_at(20)
        self.assert_finished_as_if_undisturbed(job, starts=2)

    def case_unwarned_time_limit_by_mpirun(self):
        self.unwarned_time_limit("mpirun")

    def case_unwarned_time_limit_by_srun(self):
        self.unwarned_time_limit("srun")

    def case_module(self):
        if subprocess.run(["bash", "-c", "source /etc/profile; type module"], capture_output=True).returncode != 0:
            self.skipTest("/etc/profile defines no 'module' (package lmod)")
        modulefile = self.shared_folder / "modules" / "of-this-test"
        modulefile.parent.mkdir()
        modulefile.write_text(f"#%Module\nprepend-path PATH {holdfast_run.binary.parent}\n")
        path = self.lab.environment["PATH"].replace(str(holdfast_run.binary.parent), "/nowhere")
        env = {"HOLDFAST_MODULE": modulefile.name, "MODULEPATH": modulefile.parent, "PATH": path}
        job = self.job("module", nodes=1, env=env)
        job.wait_until_training(1)

    def case_evaluation(self):
        run_dir = self.shared_folder / "evaluation of 'this'"
        shutil.copytree(self.undisturbed_until(20, 0), run_dir)
        job = self.job("eval", script="eval.sbatch", env={"HOLDFAST_RUN": run_dir})
        job.wait_until_state("COMPLETED")
        accuracy = re.search(r"Test Acc: [\d.]+%", self.run_ok("eval", run_dir, ranks=1).stdout).group()
        self.assertTrue(job.said(re.escape(accuracy)), job)


# The program that tests/mpi/failing_rank.cpp makes.
failing_rank = Path()

if __name__ == "__main__":
    if "--failing-rank" in sys.argv:
        at = sys.argv.index("--failing-rank")
        failing_rank = Path(sys.argv.pop(at + 1)).resolve()
        sys.argv.pop(at)
    holdfast_run.main()
