#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills a run again and again, each time another way, and starts it again on another number of ranks. In the end it must
hold the bytes of the run that nobody disturbed.

    tests/campaign/kill_campaign.py --kills 1000 --seed 7 --report report.md

SIGKILL goes to a random rank, to all ranks or to mpirun. Every other kill, and some more, wait for a moment at which a checkpoint is
being written: rank 0 is stopped when its temporary file appears, and the file must still be there once it stands.
"""

import argparse
import collections
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import checkpoints, last_step, narrow  # noqa: E402

REPLICAS = 5
MAX_STEPS = 3  # after which a launch is to be killed
TARGETS = ("one rank", "all ranks", "mpirun")
MOMENTS = ("while a checkpoint is written", "at a random step", "during the start")


# Without an end: how many steps the kills leave time for depends on the machine. The last launch is given one.
FLAGS = narrow("synthetic:150", epochs=1000000, save_every_steps=1, lr_step_size=20)


def writes_checkpoint(run: Path) -> bool:
    return any(run.glob("writer-*/step-*.h5.tmp"))


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop_while_writing(launch, run: Path, rank_0: int) -> bool:
    """Whether rank 0 now stands with a checkpoint half written (or the launch has ended)."""
    launch.wait_for("a save", lambda: writes_checkpoint(run))
    os.kill(rank_0, signal.SIGSTOP)
    while state_of(rank_0) not in "TtZ":
        time.sleep(0.0005)
    if writes_checkpoint(run):
        return True
    os.kill(rank_0, signal.SIGCONT)
    return False


class Campaign:
    def __init__(self, kills: int, minutes: float, seed: int, folder: Path):
        self.random = random.Random(seed)
        self.kills, self.minutes, self.seed = kills, minutes, seed
        self.run, self.undisturbed = folder / "run", folder / "undisturbed"
        self.counts = collections.Counter()
        self.finished = {}

    def kill_once(self, number: int) -> None:
        target = self.random.choice(TARGETS)
        moment = MOMENTS[0] if number % 2 else self.random.choices(MOMENTS, weights=(4, 6, 2))[0]
        ranks = self.random.randint(1, REPLICAS)
        launch = holdfast_run.start("train", *FLAGS, "--run", self.run, ranks=ranks)
        try:
            before = last_step(self.run)
            launch.wait_for("all ranks", lambda: len([r for r in launch.processes().values() if r is not None]) == ranks)
            pids = {rank: pid for pid, rank in launch.processes().items() if rank is not None}
            if moment == "during the start":
                time.sleep(self.random.uniform(0, 1))
            else:
                wanted = before + self.random.randint(1, MAX_STEPS)
                launch.wait_for("its step", lambda: last_step(self.run) >= wanted)
            if moment == "while a checkpoint is written":
                while not stop_while_writing(launch, self.run, pids[0]):
                    pass
            victims = {"one rank": [pids[self.random.randrange(ranks)]], "all ranks": list(pids.values())}
            for pid in victims.get(target, [launch.process.pid]):
                os.kill(pid, signal.SIGKILL)
            if state_of(pids[0]) in "Tt":
                os.kill(pids[0], signal.SIGCONT)
            # What outlives its mpirun, a scheduler kills at the end of the job.
            launch.left_over(grace_s=5)
        finally:
            launch.kill()
            ended = launch.finish()
        if ended.code == 0:
            raise AssertionError(f"survived a kill of {target} {moment}: {ended}")
        self.counts[target, moment] += 1

    def train_to(self, step: int, run: Path, ranks: int) -> None:
        launch = holdfast_run.start("train", *FLAGS, "--max-steps", step, "--run", run, ranks=ranks)
        ended = launch.finish(timeout_s=holdfast_run.HANG_S + 2 * self.kills)
        assert ended.code == 0, ended

    def check(self) -> None:
        end = max(checkpoints(self.run)) + 7
        self.train_to(end, self.run, ranks=self.random.randint(1, REPLICAS))
        self.train_to(end, self.undisturbed, ranks=2)
        verified = holdfast_run.run("verify", self.run)
        assert verified.code == 0, verified
        left = [path.name for path in self.run.glob("**/*") if path.name.endswith((".tmp", ".bad"))]
        assert not left, f"left behind: {left}"
        results = [holdfast_run.inspect(run) for run in (self.run, self.undisturbed)]
        for key in ("epoch", "step", "parameters_digest", "state_digest"):
            assert results[0][key] == results[1][key], f"{key}: {results[0][key]}, undisturbed {results[1][key]}"
        tables = [(run / "metrics.csv").read_bytes() for run in (self.run, self.undisturbed)]
        assert tables[0] == tables[1], "metrics.csv is not that of the undisturbed run"
        self.finished = results[0]

    def go(self) -> None:
        print(f"{self.kills} kills, seed {self.seed}", flush=True)
        end = time.monotonic() + 60 * self.minutes
        for number in range(1, self.kills + 1):
            if time.monotonic() > end:
                break
            self.kill_once(number)
            if number % 10 == 0:
                print(f"{number} kills, checkpoint of step {max(checkpoints(self.run), default=-1)}", flush=True)
        self.check()

    def report(self) -> str:
        kills = sum(self.counts.values())
        lines = [f"{kills} kills, seed {self.seed}; all bytes are those of the undisturbed run:"]
        lines += [f"step {self.finished['step']}, state {self.finished['state_digest']}, metrics.csv alike.", ""]
        lines += ["| killed | " + " | ".join(MOMENTS) + " |", "|---" * (len(MOMENTS) + 1) + "|"]
        for target in TARGETS:
            lines.append(f"| {target} | " + " | ".join(str(self.counts[target, moment]) for moment in MOMENTS) + " |")
        return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holdfast", type=Path, required=True, help="the program to test")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="kill no longer than this (default: no limit)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time; it is printed")
    parser.add_argument("--report", type=Path, help="write the result to this file too")
    options = parser.parse_args()
    holdfast_run.binary = options.holdfast.resolve()
    with tempfile.TemporaryDirectory(prefix="holdfast-campaign-") as folder:
        campaign = Campaign(options.kills, options.minutes, options.seed, Path(folder))
        campaign.go()
    while_writing = sum(n for (_, moment), n in campaign.counts.items() if moment == MOMENTS[0])
    assert 2 * while_writing >= sum(campaign.counts.values()), f"only {while_writing} kills came while a checkpoint was written"
    print(campaign.report())
    if options.report:
        options.report.write_text(campaign.report())


if __name__ == "__main__":
    main()
