#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""RUN/outcome.json says how the last launch ended, and counts the launches that get nowhere."""

import json
import shutil
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW, Launch, checkpoints, files_below, mpirun, narrow  # noqa: E402

LIMIT_KIB = 64 * 1024


class OutcomeTest(holdfast_run.TestCase):
    def setUp(self):
        super().setUp()
        self.run_dir = self.folder / "run"

    def outcome(self) -> dict:
        return json.loads((self.run_dir / "outcome.json").read_text())

    def assert_outcome(self, code: int, *words: str, **others) -> dict:
        outcome = self.outcome()
        self.assertEqual(outcome["code"], code, outcome)
        for word in words:
            self.assertIn(word, outcome["reason"])
        self.assertEqual({key: outcome[key] for key in others}, others)
        return outcome


class HowTheLastLaunchEnded(OutcomeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.finished = cls.shared_folder / "finished"
        ended = holdfast_run.run("train", *NARROW, "--run", cls.finished, "--epochs", 1, ranks=2)
        assert ended.code == 0, ended

    def setUp(self):
        super().setUp()
        shutil.copytree(self.finished, self.run_dir)

    def assert_refused(self, *arguments, code: int = 93) -> holdfast_run.Ended:
        before = self.outcome()["launch"]
        ended = holdfast_run.run("train", "--run", self.run_dir, *arguments, ranks=2)
        self.assertEqual(ended.code, code, ended)
        self.assertEqual(list(self.run_dir.glob("writer-*")), [], "the run was not released")
        self.assertGreater(self.outcome()["launch"], before)
        return ended

    def test_finished(self):
        self.assert_outcome(0, "finished", step=4, epoch=1, saved_step=4, launches_without_progress=0)
        before = files_below(self.run_dir)
        self.run_ok("train", "--run", self.run_dir, ranks=2)
        self.assertEqual(files_below(self.run_dir), before)

    def test_refused_before_the_run_is_owned(self):
        before = files_below(self.run_dir / "checkpoints")
        self.assert_refused("--lr", 0.5)
        self.assert_outcome(93, "lr is 0.05 there and 0.5 here", saved_step=4)
        self.assert_refused("--epochs", 2, "--data", self.folder / "missing")
        self.assert_outcome(93, str(self.folder / "missing"), "does not exist")
        self.assert_refused("--resume", "never")
        self.assert_outcome(93, "--resume never")
        # Nothing but that is changed, and what is finished is so again.
        self.assertEqual(files_below(self.run_dir / "checkpoints"), before)
        self.run_ok("train", "--run", self.run_dir, ranks=2)
        self.assert_outcome(0, "finished", epoch=1, step=4, saved_step=4)
        self.run_ok("verify", self.run_dir)

    def test_finished_but_killed_before_it_could_say_so(self):
        (self.run_dir / "outcome.json").unlink()
        self.run_ok("train", "--run", self.run_dir, ranks=2)
        self.assert_outcome(0, "finished", saved_step=4)

    def test_what_has_an_owner_or_is_no_run_is_left_alone(self):
        shutil.rmtree(self.run_dir)
        missing = ["--data", self.folder / "missing"]
        self.assertEqual(holdfast_run.run("train", "--run", self.run_dir, *missing).code, 93)
        self.assertFalse(self.run_dir.exists())
        self.run_dir.mkdir()
        self.assertEqual(holdfast_run.run("train", "--run", self.run_dir, *missing).code, 93)
        self.assertEqual(list(self.run_dir.iterdir()), [])
        owner = self.start("train", *narrow("synthetic:150"), "--run", self.run_dir, "--epochs", 100_000, ranks=2)
        owner.wait_for("a step", lambda: holdfast_run.last_step(self.run_dir) >= 1)
        self.assertEqual(holdfast_run.run("train", "--run", self.run_dir, "--lr", 7).code, 93)
        self.assertEqual(holdfast_run.run("train", "--run", self.run_dir).code, 94)
        self.assertFalse((self.run_dir / "outcome.json").exists())
        at = holdfast_run.last_step(self.run_dir)
        owner.wait_for("steps of the owner", lambda: holdfast_run.last_step(self.run_dir) > at + 1)
        self.assertEqual(len(list(self.run_dir.glob("writer-*"))), 1)
        owner.kill()
        owner.finish()

    def test_dry_run_leaves_no_outcome(self):
        before = files_below(self.run_dir)
        ended = holdfast_run.run("train", "--run", self.run_dir, "--lr", 0.5, "--dry-run", ranks=2)
        self.assertEqual(ended.code, 93, ended)
        self.assertEqual(files_below(self.run_dir), before)


class NoProgress(OutcomeTest):
    def setUp(self):
        super().setUp()
        self.log = self.folder / "indices.jsonl"
        with open(self.log, "wb") as file:
            file.truncate(LIMIT_KIB * 1024 - 100)  # a hole; the first step's rows need more than 100 bytes

    def fail_in_the_first_step(self, *options) -> holdfast_run.Ended:
        """A launch that ends by an error which may pass (75): its --log-indices file is full."""
        limited = ["-np", 2, "bash", "-c", f'ulimit -f {LIMIT_KIB} && exec "$@"', "bash"]
        arguments = ["train", *NARROW, "--run", self.run_dir, "--epochs", 1000, "--save-every-epochs", 0, *options]
        return Launch(mpirun([*limited, holdfast_run.binary, *arguments, "--log-indices", self.log]), {}, None).finish()

    def kill_in_the_first_step(self) -> None:
        launch = self.start("train", *NARROW, "--run", self.run_dir, "--epochs", 100_000, "--save-every-epochs", 0, ranks=2)
        before = holdfast_run.last_step(self.run_dir)
        launch.wait_for("a step", lambda: holdfast_run.last_step(self.run_dir) > before)
        launch.kill()
        self.assertNotEqual(launch.finish().code, 0)

    def test_three_errors_in_a_row(self):
        for number in (1, 2):
            self.assert_fails(self.fail_in_the_first_step(), 75, "--log-indices")
            self.assert_outcome(75, "--log-indices", launches_without_progress=number, saved_step=0)
        self.assert_fails(self.fail_in_the_first_step(), 93, "no progress: 3 launches in a row", "--log-indices")
        self.assert_outcome(93, "no progress: 3 launches in a row", "--log-indices", launches_without_progress=0)
        # Whoever starts it again has done something about it: it is worth as many again.
        self.assert_fails(self.fail_in_the_first_step(), 75, "--log-indices")
        self.assertEqual(list(checkpoints(self.run_dir)), [0])

    def test_kills_do_not_count_and_progress_does(self):
        self.assertEqual(self.fail_in_the_first_step().code, 75)
        self.kill_in_the_first_step()
        self.kill_in_the_first_step()
        self.assert_outcome(75, launches_without_progress=1)
        self.assertEqual(self.fail_in_the_first_step().code, 75)
        self.run_ok("train", "--run", self.run_dir, "--max-steps", 3, ranks=2)
        self.assert_outcome(0, launches_without_progress=0, saved_step=3)
        self.assertEqual(self.fail_in_the_first_step("--max-steps", -1).code, 75)
        self.assert_outcome(75, launches_without_progress=1, saved_step=3)

    def test_limit(self):
        self.assert_fails(self.fail_in_the_first_step("--no-progress-limit", 1), 93, "no progress: 1 launches")
        for _ in range(4):
            self.assertEqual(self.fail_in_the_first_step("--no-progress-limit", 0).code, 75)
        self.assert_outcome(75, launches_without_progress=4)


if __name__ == "__main__":
    holdfast_run.main()
