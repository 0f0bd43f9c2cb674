#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are written beside the training: what is wrong with the disk does not stop a run that need not stop."""

import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import checkpoints, last_step, narrow  # noqa: E402

STEPS = 60
FLAGS = narrow("synthetic:150", epochs=STEPS // 10, save_every_steps=1, keep=100)


class Checkpoints:
    """Takes the folder of a run's checkpoints away, so that every save fails, and gives it back."""

    def __init__(self, run: Path):
        self.folder = run / "checkpoints"
        self.kept = run / "kept"

    def take_away(self) -> None:
        self.folder.rename(self.kept)
        self.folder.write_text("not a folder")

    def give_back(self) -> None:
        self.folder.unlink()
        self.kept.rename(self.folder)


class SaveTest(holdfast_run.TestCaseWithUndisturbedRun):
    FLAGS = FLAGS

    def start_and_take_checkpoints_away(self, run: Path) -> tuple[holdfast_run.Launch, Checkpoints]:
        launch = self.start("train", *FLAGS, "--run", run, ranks=2)
        launch.wait_for("step 5", lambda: last_step(run) >= 5)
        disk = Checkpoints(run)
        disk.take_away()
        return launch, disk

    def test_training_goes_on_while_saves_fail(self):
        run = self.folder / "run"
        launch, disk = self.start_and_take_checkpoints_away(run)
        step = last_step(run)
        launch.wait_for("more steps", lambda: last_step(run) >= step + 10)
        saved_before = max(int(path.stem[5:]) for path in disk.kept.glob("step-*.h5"))
        disk.give_back()
        ended = launch.finish()
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.stderr.count("training goes on"), 1, ended)
        self.assertIn("checkpoints work again", ended.stdout)
        self.assertLess(saved_before, STEPS)
        self.assert_same_result(run, self.undisturbed)

    def test_only_checked_states_are_saved(self):
        """A save that is due waits for the step at which the replicas are compared."""
        run = self.folder / "run"
        flags = narrow("synthetic:150", epochs=3, save_every_steps=1, check_replicas_every=4, keep=100)
        self.run_ok("train", *flags, "--run", run, ranks=2)
        steps = set(checkpoints(run)) - {0}
        self.assertLessEqual({4, 30}, steps)
        self.assertLessEqual(steps, {*range(4, 30, 4), 30}, "the last one is checked when it is saved")

    def test_last_save_that_fails_ends_with_75_and_loses_nothing(self):
        run = self.folder / "run"
        launch, disk = self.start_and_take_checkpoints_away(run)
        ended = launch.finish()
        disk.give_back()
        self.assert_fails(ended, 75, f"the checkpoint of step {STEPS} was not saved")
        self.assertEqual(launch.left_over(), {})
        self.assertEqual(json.loads((run / "outcome.json").read_text())["code"], 75)
        again = self.run_ok("train", "--run", run, ranks=3)
        self.assertIn("Resuming training from snapshot", again.stdout)
        self.assert_same_result(run, self.undisturbed)

    def test_both_times_of_a_save_are_recorded(self):
        rows = [json.loads(line) for line in (self.undisturbed / "metrics.jsonl").read_text().splitlines()]
        saves = [row for row in rows if row["event"] == "save"]
        self.assertEqual((saves[0]["step"], saves[-1]["step"]), (0, STEPS))
        for row in saves:
            self.assertTrue(0 < row["blocked_s"] <= row["durable_s"], row)
        self.assertEqual(sorted(checkpoints(self.undisturbed)), [row["step"] for row in saves])


if __name__ == "__main__":
    holdfast_run.main()
