#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that is asked to stop saves, exits with 75, and ends with the bytes of an undisturbed run when started again."""

import json
import os
import signal
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import checkpoints, last_step, narrow  # noqa: E402

STEPS = 60
# Saved only when asked to stop: what is found afterwards was saved because of that.
LONG = narrow("synthetic:150", epochs=STEPS // 10, save_every_epochs=0)


class DrainTest(holdfast_run.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = cls.shared_folder / "undisturbed"
        ended = holdfast_run.run("train", *LONG, "--run", cls.undisturbed, ranks=2)
        assert ended.code == 0, ended

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

    def test_signal_without_mpirun(self):
        run = self.folder / "run"
        launch = self.start("train", *LONG, "--run", run)
        launch.wait_for("step 5", lambda: last_step(run) >= 5)
        os.kill(launch.process.pid, signal.SIGTERM)
        self.assert_stopped_and_goes_on(run, launch.finish(), ranks=2)

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


if __name__ == "__main__":
    holdfast_run.main()
