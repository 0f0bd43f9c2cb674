#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that is asked to stop saves, exits with 75, and ends with the bytes of an undisturbed run when started again."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import checkpoints, epoch_lines, last_step, narrow  # noqa: E402

STEPS = 60
# Saved only when asked to stop: what is found afterwards was saved because of that.
LONG = narrow("synthetic:150", epochs=STEPS // 10, save_every_epochs=0)


def catches(pid: int, number: signal.Signals) -> bool:
    mask = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE).group(1)
    return bool(int(mask, 16) >> (number - 1) & 1)


class DrainTest(holdfast_run.TestCaseWithUndisturbedRun):
    FLAGS = LONG

    def assert_stopped_and_goes_on(self, run: Path, ended: holdfast_run.Ended, ranks: int) -> None:
        self.assertEqual(ended.code, 75, ended)
        step = max(checkpoints(run))
        self.assertTrue(5 <= step < STEPS, f"stopped at step {step}, too late to test anything")
        self.assertEqual(last_step(run), step - 1, "steps were done after the one that was saved")
        outcome = json.loads((run / "outcome.json").read_text())
        self.assertEqual((outcome["code"], outcome["step"]), (75, step))
        self.assertIn(f"Stopped at step {step}", ended.stdout)
        self.assertEqual(list(run.glob("writer-*")), [], "the run was not released")
        again = self.run_ok("train", "--run", run, "--save-every-epochs", 0, ranks=ranks)
        self.assertIn("Resuming training from snapshot", again.stdout)
        self.assert_same_result(run, self.undisturbed)
        outcome = json.loads((run / "outcome.json").read_text())
        self.assertEqual((outcome["code"], outcome["step"]), (0, STEPS))

    def test_signal_to_one_rank(self):
        for number, rank in ((signal.SIGUSR1, 1), (signal.SIGTERM, 2), (signal.SIGINT, 0)):
            with self.subTest(f"{number.name} to rank {rank}"):
                run = self.folder / number.name
                launch = self.start("train", *LONG, "--run", run, ranks=3)
                launch.signal_rank_in(run, 5, rank, number)
                ended = launch.finish()
                self.assertEqual(launch.left_over(), {})
                self.assert_stopped_and_goes_on(run, ended, ranks=2)

    def test_signal_to_mpirun(self):
        run = self.folder / "run"
        launch = self.start("train", *LONG, "--run", run, ranks=2)
        launch.wait_for("step 5", lambda: last_step(run) >= 5)
        os.kill(launch.process.pid, signal.SIGUSR1)
        self.assert_stopped_and_goes_on(run, launch.finish(), ranks=3)

    def test_end_of_mpirun_is_a_request_too(self):
        """TERM and Ctrl-C make mpirun end its ranks: after a while by TERM, and after as long again by KILL. Its own code is lost
        then, so scripts look at outcome.json.
        """
        endless = narrow("synthetic:150", epochs=1000000, save_every_epochs=0)
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number.name):
                run = self.folder / number.name
                patience = {"OMPI_MCA_odls_base_sigkill_timeout": 5}
                launch = self.start("train", *endless, "--run", run, ranks=2, env=patience)
                launch.wait_for("step 5", lambda: last_step(run) >= 5)
                os.kill(launch.process.pid, number)
                launch.finish()
                outcome = json.loads((run / "outcome.json").read_text())
                self.assertEqual((outcome["code"], outcome["step"]), (75, max(checkpoints(run))))
                self.assertGreater(outcome["step"], 5)
                self.run_ok("train", "--run", run, "--max-steps", outcome["step"] + 2, ranks=3)
                self.run_ok("verify", run)

    def test_signal_without_mpirun(self):
        run = self.folder / "run"
        launch = self.start("train", *LONG, "--run", run)
        launch.wait_for("step 5", lambda: last_step(run) >= 5)
        os.kill(launch.process.pid, signal.SIGTERM)
        self.assert_stopped_and_goes_on(run, launch.finish(), ranks=2)

    def test_signal_at_any_moment_of_the_start(self):
        run = self.folder / "run"
        for delay_ms in (0, 50, 100, 200, 300, 400, 600, 900):
            launch = self.start("train", *LONG, "--run", run, ranks=2)
            while not (pids := [pid for pid, rank in launch.processes().items() if rank == 1]):
                time.sleep(0.001)
            # Before main, while libraries are loaded, a signal does what it does to every program.
            launch.wait_for("main", lambda: catches(pids[0], signal.SIGUSR1))
            time.sleep(delay_ms / 1000)
            os.kill(pids[0], signal.SIGUSR1)
            ended = launch.finish()
            self.assertEqual(ended.code, 75, ended)
            self.assertEqual(launch.left_over(), {})
        self.run_ok("train", *LONG, "--run", run, ranks=3)
        self.assert_same_result(run, self.undisturbed)

    def test_signal_during_an_evaluation(self):
        # An epoch is 2 steps, then come 600 batches of evaluation.
        flags = narrow("synthetic:3000", batch_size=300, eval_batch_size=1, epochs=2, save_every_epochs=0)
        run, undisturbed = self.folder / "run", self.folder / "undisturbed"
        self.run_ok("train", *flags, "--run", undisturbed, ranks=2)
        launch = self.start("train", *flags, "--run", run, ranks=3)
        launch.signal_rank_in(run, 1, 1, signal.SIGUSR1)
        ended = launch.finish()
        self.assertEqual(ended.code, 75, ended)
        self.assertEqual(max(checkpoints(run)), 2)
        self.assertEqual(epoch_lines(ended), [], "the evaluation was not broken off")
        self.assertIn("\n0        3000 ", self.run_ok("verify", run).stdout)
        again = self.run_ok("train", "--run", run, ranks=2)
        self.assertEqual(len(epoch_lines(again)), 2, again)
        self.assert_same_result(run, undisturbed)
        self.run_ok("verify", run)

    def held(self, path: str) -> dict:
        """Environment in which fsync of paths that hold `path` hangs while self.hold exists."""
        self.hold = self.folder / "hold"
        shim = holdfast_run.binary.parents[1] / "tests" / "libheld_fsync.so"
        return {"LD_PRELOAD": shim, "HELD_FSYNC_FILE": self.hold, "HELD_FSYNC_PATH": path}

    def wait_until_held(self, launch: holdfast_run.Launch) -> None:
        launch.wait_for("a file that hangs", Path(f"{self.hold}.entered").exists)

    def test_signal_during_a_save(self):
        run = self.folder / "run"
        endless = narrow("synthetic:150", epochs=1000000, save_every_steps=1)
        launch = self.start("train", *endless, "--run", run, ranks=3, env=self.held("/step-"))
        launch.wait_for("step 5", lambda: last_step(run) >= 5)
        pids = [pid for pid, rank in launch.processes().items() if rank == 1]
        self.hold.touch()
        self.wait_until_held(launch)
        before = max(checkpoints(run))
        os.kill(pids[0], signal.SIGUSR1)
        step = -1
        while last_step(run) != step:  # all ranks wait for the last save, which waits for the one that hangs
            step = last_step(run)
            time.sleep(0.5)
        self.assertEqual(max(checkpoints(run)), before)
        self.hold.unlink()
        ended = launch.finish()
        self.assertEqual(ended.code, 75, ended)
        outcome = json.loads((run / "outcome.json").read_text())
        self.assertEqual((outcome["code"], outcome["step"], max(checkpoints(run)), step), (75, step + 1, step + 1, last_step(run)))
        self.run_ok("train", "--run", run, "--max-steps", step + 3, ranks=2)
        self.run_ok("verify", run)

    def test_signal_during_shutdown(self):
        """Too late to stop anything: the run is finished."""
        run = self.folder / "run"
        flags = narrow(save_every_epochs=0)
        env = self.held("outcome.json")
        self.hold.touch()
        launch = self.start("train", *flags, "--run", run, ranks=2, env=env)
        self.wait_until_held(launch)
        for pid, rank in launch.processes().items():
            if rank is not None:
                os.kill(pid, signal.SIGTERM)
        self.hold.unlink()
        ended = launch.finish()
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(json.loads((run / "outcome.json").read_text())["code"], 0)
        self.assertEqual(launch.left_over(), {})

    def test_repeated_signals_change_nothing(self):
        run = self.folder / "run"
        launch = self.start("train", *LONG, "--run", run, ranks=2)
        launch.wait_for("step 5", lambda: last_step(run) >= 5)
        for pid, rank in launch.processes().items():
            for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1) if rank is not None else ():
                os.kill(pid, number)
        self.assert_stopped_and_goes_on(run, launch.finish(), ranks=3)

    def test_second_interrupt_stops_at_once(self):
        run = self.folder / "run"
        launch = self.start("train", *LONG, "--save-every-steps", 2, "--run", run, ranks=2)
        launch.wait_for("step 5", lambda: last_step(run) >= 5)
        pid = next(pid for pid, rank in launch.processes().items() if rank == 0)
        os.kill(pid, signal.SIGSTOP)  # so that both are there before it can act on the first
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGCONT)
        try:
            os.kill(pid, signal.SIGINT)
        except ProcessLookupError:
            pass
        ended = launch.finish()
        self.assertEqual(ended.code, 75, ended)
        self.assertEqual(launch.left_over(), {})
        self.run_ok("train", "--run", run, ranks=3)
        self.assert_same_result(run, self.undisturbed)

    def test_stops_before_the_time_is_up(self):
        endless = narrow("synthetic:150", epochs=1000000)
        for how, seconds in (("flag", 9), ("HOLDFAST_END_TIME", 20), ("SLURM_JOB_END_TIME", 9)):
            with self.subTest(how):
                run = self.folder / how
                flags = ("--stop-after-minutes", seconds / 60) if how == "flag" else ()
                end_time = int(time.time()) + seconds
                variables = {} if how == "flag" else {how: end_time}
                ended = self.start("train", *endless, "--run", run, *flags, ranks=2, env=variables).finish()
                self.assertEqual(ended.code, 75, ended)
                self.assertRegex(ended.stdout, "the time (is up in|was up) ")
                self.assertEqual(json.loads((run / "outcome.json").read_text())["step"], max(checkpoints(run)))
                if how == "HOLDFAST_END_TIME":  # enough time to have started by then, also on a busy machine
                    self.assertLess((run / "outcome.json").stat().st_mtime, end_time, ended)

    def test_end_of_time_that_is_none_or_past(self):
        for text in ("noon", "nan", "inf", "-1", "12:00"):
            ended = holdfast_run.run("train", *LONG, cwd=self.folder, env={"HOLDFAST_END_TIME": text})
            self.assert_fails(ended, 2, f"HOLDFAST_END_TIME is {text}, must be a time in seconds since 1970", "date -d", "unset it")
        self.assertEqual(list(self.folder.iterdir()), [])
        ended = holdfast_run.run("train", *LONG, "--run", self.folder / "run", env={"HOLDFAST_END_TIME": 1})
        self.assert_fails(ended, 75)
        self.assertRegex(ended.stdout, r"the time was up \d+ s ago")

    def test_drain_file(self):
        run = self.folder / "run"
        launch = self.start("train", *LONG, "--run", run, ranks=2)
        launch.wait_for("step 5", lambda: last_step(run) >= 5)
        (run / "drain").touch()
        self.assert_stopped_and_goes_on(run, launch.finish(), ranks=4)
        self.assertFalse((run / "drain").exists(), "the request outlived the launch after it")

    def test_older_drain_file_does_not_stop_a_new_owner(self):
        run = self.folder / "run"
        self.run_ok("train", *LONG, "--run", run, "--max-steps", 7, ranks=2)
        (run / "drain").touch()
        self.run_ok("train", "--run", run, "--max-steps", STEPS, "--save-every-epochs", 0, ranks=2)
        self.assertFalse((run / "drain").exists())
        self.assert_same_result(run, self.undisturbed)

    def test_folder_of_that_name(self):
        """It would stop every launch after one step, for ever."""
        run = self.folder / "run"
        (run / "drain").mkdir(parents=True)
        self.run_ok("train", *LONG, "--run", run, "--max-steps", 7)
        self.assertFalse((run / "drain").exists())
        (run / "drain" / "mine").mkdir(parents=True)
        self.assert_fails(holdfast_run.run("train", "--run", run, "--max-steps", 8, ranks=2), 93, str(run / "drain"), "remove it")


if __name__ == "__main__":
    holdfast_run.main()
