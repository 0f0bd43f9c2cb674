#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train --profile-steps: a trace in RUN/trace of what each rank did when in these steps, and nothing else changes."""

import json
import sys
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW_STEPS_PER_EPOCH, TestCase, narrow, result_below, run  # noqa: E402

RANKS = 2
REPLICAS = 5
# Eight steps in two epochs; the first epoch ends within the steps that are recorded.
FLAGS = narrow(epochs=2, save_every_epochs=1)


def spans_of(file: Path) -> list[dict]:
    """Those of chrome://tracing's format that have a duration."""
    trace = json.loads(file.read_text())
    kinds = {event["ph"] for event in trace["traceEvents"]}
    assert kinds == {"M", "X"}, kinds
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def end(span: dict) -> float:
    return span["ts"] + span["dur"]


class ProfileSteps(TestCase):
    def trace_of(self, *arguments, ranks: int = RANKS) -> list[dict]:
        self.run_ok("train", *FLAGS, "--run", self.folder / "run", *arguments, ranks=ranks)
        (file,) = (self.folder / "run" / "trace").iterdir()
        self.assertEqual(file.name, "000001.json")
        return spans_of(file)

    def test_every_phase_of_the_right_steps_on_every_rank(self):
        spans = self.trace_of("--profile-steps", "2:4")
        found = {(span["name"], span["pid"], span["args"]["step"]) for span in spans}
        names = ("data", "compute", "replica", "exchange", "update", "record")
        in_steps = {(name, rank, step) for name in names for rank in range(RANKS) for step in (2, 3, 4)}
        epoch = NARROW_STEPS_PER_EPOCH
        after_epoch = {("evaluate", rank, epoch) for rank in range(RANKS)} | {("save", 0, epoch), ("write", 0, epoch)}
        self.assertEqual(found, in_steps | after_epoch)
        arguments = [span["args"] for span in spans if span["name"] == "replica"]
        computed = Counter((of_replica["step"], of_replica["replica"]) for of_replica in arguments)
        self.assertEqual(computed, {(step, replica): 1 for step in (2, 3, 4) for replica in range(REPLICAS)})

    def test_spans_fit_into_each_other(self):
        spans = self.trace_of("--profile-steps", "1:6")
        self.assertGreaterEqual(min(span["ts"] for span in spans), 0)
        self.assertGreaterEqual(min(span["dur"] for span in spans), 0)
        for rank in range(RANKS):
            of_rank = [span for span in spans if span["pid"] == rank]
            phases = [span for span in of_rank if span["tid"] == 0 and span["name"] != "update"]
            phases.sort(key=lambda span: span["ts"])
            for before, after in zip(phases, phases[1:]):
                self.assertAlmostEqual(end(before), after["ts"], delta=0.01, msg=f"us between {before} and {after}")
            for inner, outer in (("update", "exchange"), ("replica", "compute")):
                around = {span["args"]["step"]: span for span in phases if span["name"] == outer}
                for span in of_rank:
                    if span["name"] == inner:
                        phase = around[span["args"]["step"]]
                        self.assertGreaterEqual(span["ts"], phase["ts"], span)
                        self.assertLessEqual(end(span), end(phase) + 0.01, span)
                        self.assertLessEqual(span["args"].get("busy_us", 0), span["dur"] + 0.01, span)

    def test_result_is_the_same_and_without_the_flag_there_is_no_trace(self):
        self.run_ok("train", *FLAGS, "--run", self.folder / "plain", ranks=RANKS)
        self.assertFalse((self.folder / "plain" / "trace").exists())
        self.trace_of("--profile-steps", "0:7")
        self.assert_same_result(self.folder / "run", self.folder / "plain")

    def test_a_run_that_ends_before_the_last_step_has_the_trace_so_far(self):
        spans = self.trace_of("--profile-steps", "2:1000", "--max-steps", 3, ranks=1)
        self.assertEqual({span["args"]["step"] for span in spans if span["name"] == "compute"}, {2})
        self.assertEqual([span["args"]["step"] for span in spans if span["name"] == "save"], [3])

    def test_steps_that_are_not_trained_are_said(self):
        ended = self.run_ok("train", *FLAGS, "--run", self.folder / "run", "--profile-steps", "8:9")
        self.assertIn("warning: --profile-steps 8:9: this launch trained none of these steps", ended.stderr, ended)
        self.assertFalse((self.folder / "run" / "trace").exists())

    def test_a_folder_that_cannot_be_made_stops_nothing(self):
        (self.folder / "run").mkdir()
        (self.folder / "run" / "trace").write_text("in the way")
        ended = self.run_ok("train", *FLAGS, "--run", self.folder / "run", "--profile-steps", "1:2")
        self.assertIn("cannot create", ended.stderr, ended)

    def test_what_is_no_range_is_a_usage_error(self):
        for steps in ("5:4", "3", "3:", ":3", "a:b", "-1:3", "1:2:3", "1-2", "1 :2", "0:99999999999999999999", "1.5:2"):
            ended = run("train", *FLAGS, "--run", self.folder / "run", f"--profile-steps={steps}")
            self.assert_fails(ended, 2, "--profile-steps", "10:19")
        self.assertEqual(result_below(self.folder), {})


if __name__ == "__main__":
    holdfast_run.main()
