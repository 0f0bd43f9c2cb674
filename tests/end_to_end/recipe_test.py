#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The strong recipe: exact on any number of ranks, interrupted or not, and evaluated with moving averages."""

import json
import shutil
import signal
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW_STEPS_PER_EPOCH, checkpoints, inspect, narrow  # noqa: E402

EPOCHS = 6
STRONG = narrow(recipe="strong", epochs=EPOCHS)
LAST_STEP = EPOCHS * NARROW_STEPS_PER_EPOCH


class RecipeTest(holdfast_run.TestCaseWithUndisturbedRun):
    FLAGS = [*STRONG, "--digest-every", "1", "--keep", "100"]

    def test_stopped_inside_epochs_on_4_then_1_then_3_ranks(self):
        run = self.folder / "run"
        self.run_ok("train", *STRONG, "--run", run, "--max-steps", 5, ranks=4)
        self.run_ok("train", *STRONG, "--run", run, "--max-steps", 14, ranks=1)
        self.run_ok("train", "--run", run, "--max-steps", -1, ranks=3)
        self.assert_same_result(run, self.undisturbed)

    def test_killed_and_started_again(self):
        run = self.folder / "run"
        for _ in range(20):  # until a checkpoint is on the disk, and not yet the last one
            launch = self.start("train", *STRONG, "--run", run, "--save-every-steps", 3, ranks=3)
            launch.signal_rank_in(run, 7, 1, signal.SIGKILL)
            launch.finish()
            step = max(checkpoints(run))
            if 0 < step < LAST_STEP:
                break
            shutil.rmtree(run)
        self.assertTrue(0 < step < LAST_STEP, f"killed too early or too late to test anything: step {step}")
        self.run_ok("train", "--run", run, ranks=2)
        self.assert_same_result(run, self.undisturbed)

    def test_another_seed_gives_other_bytes(self):
        run = self.folder / "run"
        self.run_ok("train", *STRONG, "--run", run, "--seed", 1, ranks=2)
        self.assertNotEqual(inspect(run)["state_digest"], inspect(self.undisturbed)["state_digest"])

    def test_a_step_replayed_is_the_same(self):
        ended = self.run_ok("replay", self.undisturbed, "--step", 11, ranks=3)
        self.assertRegex(ended.stdout, "step 11: same")

    def test_evaluation_is_of_the_averages_which_do_not_change_the_training(self):
        self.assertEqual(inspect(self.undisturbed)["evaluates"], "moving averages")
        run = self.folder / "run"
        self.run_ok("train", *STRONG, "--run", run, "--ema-decay", 0, ranks=2)
        self.assertEqual(inspect(run)["evaluates"], "parameters")
        self.assertEqual(inspect(run)["parameters_digest"], inspect(self.undisturbed)["parameters_digest"])
        losses = {}
        for path in (run, self.undisturbed):
            evaluated = json.loads(self.run_ok("eval", path, "--json", ranks=2).stdout)
            rows = [line.split(",") for line in (path / "metrics.csv").read_text().splitlines()]
            losses[path] = float(rows[-1][rows[0].index("test_loss")])
            self.assertEqual(evaluated["test_loss"], losses[path])
        self.assertNotEqual(losses[run], losses[self.undisturbed])

    def test_the_rate_rises_and_falls_over_the_run(self):
        rows = [json.loads(line) for line in (self.undisturbed / "metrics.jsonl").read_text().splitlines()]
        rates = [row["lr"] for row in rows if row["event"] == "step"]
        top = 3 * NARROW_STEPS_PER_EPOCH - 1  # of the warm-up's three epochs
        self.assertEqual((len(rates), rates[top], max(rates)), (LAST_STEP, 0.05, 0.05))
        self.assertEqual(rates, sorted(rates[: top + 1]) + sorted(rates[top + 1 :], reverse=True))

    def test_what_decides_the_result_is_refused_at_resume(self):
        for flag, value, kept in (("recipe", "tutorial", "strong"), ("epochs", EPOCHS + 1, EPOCHS), ("nesterov", "false", "true")):
            ended = holdfast_run.run("train", "--run", self.undisturbed, f"--{flag}", value)
            self.assert_fails(ended, 93, flag, str(value), str(kept), "--run")

    def test_wrong_values(self):
        for flag, value in (("recipe", "best"), ("nesterov", "perhaps"), ("warmup-epochs", 16)):
            ended = holdfast_run.run("train", "--recipe", "strong", "--run", self.folder / "run", f"--{flag}", value)
            self.assert_fails(ended, 2, f"--{flag}", str(value))
        self.assertFalse((self.folder / "run").exists())

    def test_the_configuration_shows_the_recipe_and_can_be_used(self):
        shown = self.run_ok("train", "--recipe", "strong", "--lr", 0.5, "--print-config").stdout
        for line in ('recipe = "strong"', "lr = 0.5", 'augment = "crop-flip"', "batch-size = 128", "weight-decay = 0.0005"):
            self.assertIn(f"\n{line}\n", shown)
        file = self.folder / "config.toml"
        file.write_text(shown)
        self.assertEqual(self.run_ok("train", "--config", file, "--print-config").stdout, shown)


if __name__ == "__main__":
    holdfast_run.main()
