#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program with what a GPU runs, in host memory (tests/support/host_device.cpp): the result is that of CPUs, and trouble between
the GPUs, which the stand-in for NCCL makes on demand, ends the launch in time and says what it was.
"""

import json
import os
import sys
import time

sys.dont_write_bytecode = True
import hang_test  # noqa: E402
import holdfast_run  # noqa: E402  (hang_test has put its folder on the path)
from holdfast_run import last_step, narrow  # noqa: E402

STAND_IN = "NCCL_STAND_IN_"
CALLS_PER_STEP = 2  # of NCCL: a group of sends and receives, and a gather; the network is one bucket
SHORT = narrow(device="cuda", epochs=3, save_every_epochs=1)
ENDLESS = narrow("synthetic:15000", device="cuda", epochs=1000, save_every_epochs=0)


class DeviceTest(hang_test.HangTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.on_cpus = cls.shared_folder / "on-cpus"
        ended = holdfast_run.run("train", *narrow(epochs=3), "--run", cls.on_cpus, ranks=2)
        assert ended.code == 0, ended
        cls.digest = holdfast_run.inspect(holdfast_run.checkpoints(cls.on_cpus)[12])["parameters_digest"]

    def setUp(self):
        super().setUp()
        program = holdfast_run.binary
        holdfast_run.binary = program.parents[1] / "tests" / "holdfast_on_host_device"
        self.addCleanup(setattr, holdfast_run, "binary", program)

    def train(self, *arguments, ranks: int, **how) -> holdfast_run.Ended:
        return holdfast_run.run("train", *arguments, "--run", self.run_dir, ranks=ranks, **how)

    def outcome(self) -> dict:
        return json.loads((self.run_dir / "outcome.json").read_text())

    def assert_result_of_cpus(self, ended: holdfast_run.Ended) -> None:
        self.assertEqual(ended.code, 0, ended)
        self.assert_same_result(self.run_dir, self.on_cpus)
        self.assertIn(f"Finished. Parameters digest: {self.digest}", ended.stdout)

    def test_result_is_that_of_cpus_also_on_other_ranks_later(self):
        stopped = self.train(*SHORT, "--max-steps", 5, ranks=2)
        self.assertEqual(stopped.code, 0, stopped)
        self.assertIn("NCCL exchange", stopped.stdout)
        self.assert_result_of_cpus(self.train("--max-steps", 12, ranks=3))

    def test_result_is_another_where_nccl_adds(self):
        ended = self.train(*SHORT, "--reduction", "fast", ranks=3)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("Finished. Parameters digest: ", ended.stdout)
        self.assertNotIn(self.digest, ended.stdout)

    def test_next_step_is_queued_before_the_host_looks_at_this_one(self):
        ended = self.train(*SHORT, "--profile-steps", "0:11", ranks=2)
        self.assert_result_of_cpus(ended)
        trace = json.loads((self.run_dir / "trace" / "000001.json").read_text())
        for rank in range(2):
            spans = [span for span in trace["traceEvents"] if span["ph"] == "X" and span["pid"] == rank]
            computed = [(span["args"]["step"], span["args"]["replica"]) for span in spans if span["name"] == "replica"]
            self.assertEqual(len(computed), len(set(computed)), "a replica was computed twice")
            begin = {}
            for span in spans:
                place = (span["name"], span["args"]["step"])
                begin[place] = min(span["ts"], begin.get(place, span["ts"]))
            for step in range(11):
                follows = begin["compute", step + 1]
                if (step + 1) % holdfast_run.NARROW_STEPS_PER_EPOCH:
                    self.assertLess(follows, begin["record", step], (rank, step))
                else:  # nothing is in hand when an epoch ends: the launch may, too
                    self.assertGreater(follows, begin["evaluate", step + 1], (rank, step))
            self.assertIn(("record", 11), begin)

    def test_error_of_one_rank_ends_all(self):
        ended = self.train(*SHORT, ranks=3, env={STAND_IN + "ERROR": f"1:{CALLS_PER_STEP * 6}"})
        self.assert_fails(ended, 75, "the gradient exchange failed: unhandled system error", "NCCL_DEBUG=INFO")
        self.assertRegex(ended.stderr, r"\[rank 1, .*\] error: the gradient exchange failed: unhandled system error")
        self.assertEqual((self.outcome()["code"], self.outcome()["step"]), (75, 6), self.outcome())
        self.assert_result_of_cpus(self.train(ranks=2))

    def test_rank_that_hangs_is_named(self):
        env = {STAND_IN + "HANG": f"1:{CALLS_PER_STEP * 4}"}
        launch = self.launch(*ENDLESS, watchdog_s=2, env=env)
        pids = self.pids(launch)
        launch.wait_for("step 3", lambda: last_step(self.run_dir) >= 3)
        hanging = self.assert_ended_for(launch, list(pids.values()), time.monotonic(), 1)
        self.assertEqual((hanging["phase"], hanging["step"], hanging["is_waiting"]), ("exchange", 4, False))
        self.assertEqual(hanging["process"], "")

    def test_slow_rank_is_no_hang(self):
        ended = self.train(*SHORT, "--watchdog-seconds", 1, ranks=3, env={STAND_IN + "DELAY": "2:200"})
        self.assert_result_of_cpus(ended)

    def test_error_while_the_rank_is_elsewhere(self):
        """Rank 0 waits for the reader of its metrics, and would do so for ever."""
        trouble = self.folder / "trouble"
        self.run_dir.mkdir()
        pipe = self.run_dir / "metrics.jsonl"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        launch = self.launch(*ENDLESS, watchdog_s=600, env={STAND_IN + "ERROR_WHEN": f"0:{trouble}"})
        before = 0
        while before < 3000 or before != hang_test.StepTest.bytes_in(reader):
            before = hang_test.StepTest.bytes_in(reader)
            time.sleep(0.5)
        trouble.touch()
        ended = launch.finish(timeout_s=20)
        self.assertEqual(ended.code, 75, ended)
        self.assertRegex(ended.stderr, r"\[rank 0, .*\] error: the gradient exchange failed")
        self.assertEqual(self.outcome()["code"], 75)
        self.assertIn("the gradient exchange failed: unhandled system error", self.outcome()["reason"])
        self.assertIn(self.outcome()["reason"], ended.stderr)
        self.assertEqual(self.reports(), [])
        self.assertEqual(launch.left_over(), {})


if __name__ == "__main__":
    holdfast_run.main()
