#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two launches on one run directory: one trains, the other is refused, and one that lost the run while it stood changes
nothing when it wakes. HOLDFAST_TEST_RACES=500 for the long form of the race.
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from kill_campaign import stop_while_writing  # noqa: E402
from holdfast_run import files_below, last_step, narrow  # noqa: E402

RACES = int(os.environ.get("HOLDFAST_TEST_RACES", "10"))
FLAGS = narrow("synthetic:150", epochs=6, save_every_steps=2)


class OwnershipTest(holdfast_run.TestCaseWithUndisturbedRun):
    FLAGS = FLAGS

    def test_of_two_starters_exactly_one_trains(self):
        for number in range(RACES):
            with self.subTest(race=number):
                run = self.folder / str(number)
                launches = [self.start("train", *FLAGS, "--run", run) for _ in range(2)]
                ended = sorted((launch.finish() for launch in launches), key=lambda one: one.code)
                self.assertEqual([one.code for one in ended], [0, 94], "\n".join(map(str, ended)))
                self.assertRegex(ended[1].text, r"in use by process \d+ on|taken by another launch")
                self.assert_same_result(run, self.undisturbed)
                self.assertEqual(list(run.glob("writer-*")), [])

    def test_owner_that_wakes_after_a_takeover_changes_nothing(self):
        run = self.folder / "run"
        stopped = self.start("train", *FLAGS, "--run", run)
        stopped.wait_for("step 5", lambda: last_step(run) >= 5)
        while not stop_while_writing(stopped, run, stopped.process.pid):
            pass
        self.run_ok("train", "--run", run, ranks=2)  # after 30 s without a sign of life
        before = files_below(run)
        os.kill(stopped.process.pid, signal.SIGCONT)
        self.assert_fails(stopped.finish(), 94, "another launch has taken this run over")
        time.sleep(0.5)
        after = files_below(run)
        for name in ("metrics.jsonl", "train.log"):  # its handles on logs are open; a line more is no harm
            before.pop(name), after.pop(name)
        self.assertEqual(after, before)
        self.assert_same_result(run, self.undisturbed)


if __name__ == "__main__":
    holdfast_run.main()
