#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A launch in which one rank, a disk or a cable hangs ends with 75 and says who it was; one that is only slow does not."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import last_step, narrow  # noqa: E402

SUPPORT = Path(__file__).resolve().parents[1] / "support"
# From the deadline to the end of the last rank.
LEAVING_S = 5
# No epoch ends while a test looks at the steps; the run would go on for hours.
ENDLESS = narrow("synthetic:15000", epochs=1000, save_every_epochs=0)


class HangTest(holdfast_run.TestCase):
    def setUp(self):
        super().setUp()
        self.run_dir = self.folder / "run"

    def launch(self, *arguments, watchdog_s: int, ranks: int | None = 3, env: dict = {}) -> holdfast_run.Launch:
        return self.start("train", *arguments, "--run", self.run_dir, "--watchdog-seconds", watchdog_s, ranks=ranks, env=env)

    def pids(self, launch: holdfast_run.Launch, ranks: int = 3) -> dict[int, int]:
        """Rank to process, once all are there."""
        found = {}

        def complete() -> bool:
            found.update({rank: pid for pid, rank in launch.processes().items() if rank is not None})
            return len(found) == ranks

        launch.wait_for("all ranks", complete)
        return found

    def wait_for_end(self, launch: holdfast_run.Launch, pids: list[int], since: float) -> float:
        """Seconds from `since` until the last of the processes has ended."""
        while set(launch.processes()) & set(pids):
            if time.monotonic() - since > holdfast_run.HANG_S:
                raise AssertionError(f"they hang: {launch.finish(timeout_s=0)}")
            time.sleep(0.02)
        return time.monotonic() - since

    def reports(self) -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted((self.run_dir / "hang").glob("*.json"))]

    def assert_ended_for(self, launch: holdfast_run.Launch, others: list[int], since: float, rank: int) -> dict:
        """All others end in time and name `rank`, which has hung `since` then. Returns what it is said to have done."""
        took_s = self.wait_for_end(launch, others, since)
        ended = launch.finish()
        self.assertEqual(ended.code, 75, ended)
        [report] = self.reports()
        self.assertLess(took_s, report["deadline_s"] + LEAVING_S, ended)
        self.assertEqual([row["rank"] for row in report["ranks"] if row["hangs"]], [rank], ended)
        for row in report["ranks"]:
            if row["is_waiting"] and not row["hangs"]:
                self.assertEqual(row["waits_for"], [rank], report)
        lines = [line for line in ended.stderr.splitlines() if "no progress" in line]
        self.assertEqual(len(lines), 1, ended)
        [hanging] = [row for row in report["ranks"] if row["hangs"]]
        phase = "save" if hanging.get("saving_s", 0) > hanging["seconds"] else hanging["phase"]
        self.assertIn(f"rank {rank} on {report['host']} hangs in {phase}", lines[0])
        self.assertIn(report["conclusion"], lines[0])
        outcome = json.loads((self.run_dir / "outcome.json").read_text())
        self.assertEqual((outcome["launch"], outcome["code"]), (report["launch"], 75))
        self.assertEqual(outcome["reason"], report["conclusion"])
        self.assertEqual(list((self.run_dir / "hang").glob("*.tmp")), [])
        # mpirun wakes and ends the stopped rank too.
        self.assertEqual(launch.left_over(), {})
        return hanging

    def assert_goes_on(self, *arguments, ranks: int = 2) -> None:
        again = self.run_ok("train", *arguments, "--run", self.run_dir, ranks=ranks)
        self.assertIn("Finished.", again.stdout)


class StepTest(HangTest):
    def test_rank_stopped_in_exchange(self):
        for rank, other in ((0, 2), (1, 0)):
            with self.subTest(rank=rank):
                launch = self.launch(*ENDLESS, watchdog_s=2)
                pids = self.pids(launch)
                launch.wait_for("step 5", lambda: last_step(self.run_dir) >= 5)
                # Without `other` nobody gets past the exchange: that is where `rank` is after a moment.
                os.kill(pids[other], signal.SIGSTOP)
                time.sleep(0.7)
                os.kill(pids[rank], signal.SIGSTOP)
                since = time.monotonic()
                os.kill(pids[other], signal.SIGCONT)
                hanging = self.assert_ended_for(launch, [pids[r] for r in pids if r != rank], since, rank)
                self.assertEqual((hanging["phase"], hanging["process"]), ("exchange", "is stopped"))
                shutil.rmtree(self.run_dir)

    def test_rank_stopped_in_compute(self):
        # Nearly all of a step is computing; if another moment is hit, once more.
        busy = narrow("synthetic:60000", width=16, batch_size=60, epochs=1000, save_every_epochs=0)
        for attempt in range(5):
            launch = self.launch(*busy, watchdog_s=2)
            pids = self.pids(launch)
            launch.wait_for("step 2", lambda: last_step(self.run_dir) >= 2)
            time.sleep(0.05)
            os.kill(pids[1], signal.SIGSTOP)
            since = time.monotonic()
            hanging = self.assert_ended_for(launch, [pids[0], pids[2]], since, 1)
            if hanging["phase"] == "compute":
                break
            shutil.rmtree(self.run_dir)
        self.assertEqual(hanging["phase"], "compute", f"in {attempt + 1} attempts")

    @staticmethod
    def bytes_in(pipe: int) -> int:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"0000"), sys.byteorder)

    def stop_while_it_writes(self, path: Path, *arguments) -> dict:
        """Stops rank 0 while it waits for the reader of `path`, a pipe. Returns what it is said to have done."""
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, pipe)
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
        launch = self.launch(*ENDLESS, *arguments, watchdog_s=2)
        pids = self.pids(launch)
        before = 0
        while before < 3000 or before != self.bytes_in(pipe):  # a step's rows are fewer than 1,000 bytes
            before = self.bytes_in(pipe)
            time.sleep(0.5)  # many steps
        os.kill(pids[0], signal.SIGSTOP)
        return self.assert_ended_for(launch, [pids[1], pids[2]], time.monotonic(), 0)

    def test_rank_stopped_in_data(self):
        indices = self.folder / "indices"
        self.assertEqual(self.stop_while_it_writes(indices, "--log-indices", indices)["phase"], "data")

    def test_rank_stopped_in_record(self):
        self.assertEqual(self.stop_while_it_writes(self.run_dir / "metrics.jsonl")["phase"], "record")

    def test_rank_stopped_in_check(self):
        # Comparing 60,000 images takes longer than a step with a few of them; if another moment is hit, once more.
        checking = narrow("synthetic:60000", epochs=1000, save_every_epochs=0, check_replicas_every=1)
        for attempt in range(5):
            launch = self.launch(*checking, watchdog_s=2)
            pids = self.pids(launch)
            launch.wait_for("step 2", lambda: last_step(self.run_dir) >= 2)
            os.kill(pids[1], signal.SIGSTOP)
            since = time.monotonic()
            hanging = self.assert_ended_for(launch, [pids[0], pids[2]], since, 1)
            if hanging["phase"] == "check":
                break
            shutil.rmtree(self.run_dir)
        self.assertEqual(hanging["phase"], "check", f"in {attempt + 1} attempts")

    def test_run_goes_on_after_a_hang(self):
        steps = narrow("synthetic:150", epochs=1000)
        launch = self.launch(*steps, watchdog_s=1, ranks=2)
        pids = self.pids(launch, 2)
        launch.wait_for("step 30", lambda: last_step(self.run_dir) >= 30)
        os.kill(pids[1], signal.SIGSTOP)
        self.assertEqual(launch.finish().code, 75)
        self.assert_goes_on("--epochs", 5)

    def test_hang_after_hang_is_no_progress(self):
        """The first hang comes after new checkpoints; from then on none is made."""
        launch = self.launch(*narrow("synthetic:150", epochs=1000, save_every_epochs=1), watchdog_s=1, ranks=2)
        for code, at_step in ((75, 30), (75, 0), (93, 0)):
            pids = self.pids(launch, 2)
            begun = last_step(self.run_dir)
            launch.wait_for("its steps", lambda: last_step(self.run_dir) >= max(at_step, begun + 1))
            os.kill(pids[1], signal.SIGSTOP)
            ended = launch.finish()
            self.assertEqual(ended.code, code, ended)
            outcome = json.loads((self.run_dir / "outcome.json").read_text())
            self.assertEqual(outcome["code"], code, outcome)
            self.assertIn("rank 1 on ", outcome["reason"])
            limits = ["--save-every-epochs", 0, "--no-progress-limit", 2]
            launch = self.launch(*limits, watchdog_s=1, ranks=2)
        launch.kill()
        launch.finish()

    def test_zero_turns_it_off(self):
        launch = self.launch(*narrow("synthetic:150", epochs=5), watchdog_s=0)
        pids = self.pids(launch)
        launch.wait_for("step 5", lambda: last_step(self.run_dir) >= 5)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(5)
        os.kill(pids[1], signal.SIGCONT)
        self.assertEqual(launch.finish().code, 0)
        self.assertEqual(self.reports(), [])


class OtherPhasesTest(HangTest):
    """Start, evaluation and save have ten times --watchdog-seconds."""

    def held(self, path: str) -> dict:
        """Environment in which fsync of paths that hold `path` hangs while self.hold exists."""
        self.hold = self.folder / "hold"
        shim = holdfast_run.binary.parents[1] / "tests" / "libheld_fsync.so"
        return {"LD_PRELOAD": shim, "HELD_FSYNC_FILE": self.hold, "HELD_FSYNC_PATH": path}

    def is_held(self) -> bool:
        return Path(f"{self.hold}.entered").exists()

    def test_rank_stopped_in_start(self):
        self.run_dir.mkdir()
        os.mkfifo(self.run_dir / "train.log")  # rank 0 waits for a reader
        launch = self.launch(*ENDLESS, watchdog_s=1)
        pids = self.pids(launch)
        launch.wait_for("its ownership", lambda: list(self.run_dir.glob("writer-*")))
        time.sleep(0.5)
        os.kill(pids[1], signal.SIGSTOP)
        since = time.monotonic()
        log = os.open(self.run_dir / "train.log", os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, log)
        hanging = self.assert_ended_for(launch, [pids[0], pids[2]], since, 1)
        self.assertEqual(hanging["phase"], "start")

    def test_rank_that_runs_but_hangs_in_start(self):
        self.run_dir.mkdir()
        os.mkfifo(self.run_dir / "train.log")
        launch = self.launch(*ENDLESS, watchdog_s=1)
        pids = self.pids(launch)
        launch.wait_for("its ownership", lambda: list(self.run_dir.glob("writer-*")))
        hanging = self.assert_ended_for(launch, list(pids.values()), time.monotonic(), 0)
        self.assertEqual((hanging["phase"], hanging["process"], hanging["is_waiting"]), ("start", "", False))

    def test_only_rank_hangs(self):
        self.run_dir.mkdir()
        os.mkfifo(self.run_dir / "train.log")
        launch = self.launch(*ENDLESS, watchdog_s=1, ranks=None)
        launch.wait_for("its ownership", lambda: list(self.run_dir.glob("writer-*")))
        hanging = self.assert_ended_for(launch, [launch.process.pid], time.monotonic(), 0)
        self.assertEqual((hanging["phase"], hanging["pid"]), ("start", launch.process.pid))

    def test_rank_stopped_in_evaluation(self):
        # 4 steps, then 8,000 test images.
        launch = self.launch(*narrow("synthetic:40000", limit_train=60, save_every_epochs=0), watchdog_s=1)
        pids = self.pids(launch)
        launch.wait_for("the last step", lambda: last_step(self.run_dir) == 3)
        time.sleep(0.1)
        os.kill(pids[2], signal.SIGSTOP)
        since = time.monotonic()
        hanging = self.assert_ended_for(launch, [pids[0], pids[1]], since, 2)
        self.assertEqual(hanging["phase"], "evaluate")

    def start_save(self, path: str) -> tuple[holdfast_run.Launch, dict[int, int]]:
        """A launch whose checkpoint writer hangs in fsync of a path that holds `path`, while the ranks go on."""
        env = self.held(path)
        launch = self.launch(*narrow("synthetic:15000", epochs=1000, save_every_steps=1), watchdog_s=1, env=env)
        pids = self.pids(launch)
        launch.wait_for("step 2", lambda: last_step(self.run_dir) >= 2)
        self.hold.touch()
        launch.wait_for("a save that hangs", self.is_held)
        return launch, pids

    def start_last_save(self, path: str) -> tuple[holdfast_run.Launch, dict[int, int]]:
        """The same, and all ranks wait for it."""
        launch, pids = self.start_save(path)
        (self.run_dir / "drain").touch()
        step = -1
        while last_step(self.run_dir) != step:
            step = last_step(self.run_dir)
            time.sleep(0.7)
        return launch, pids

    def test_rank_stopped_in_save(self):
        launch, pids = self.start_last_save("/step-")
        os.kill(pids[0], signal.SIGSTOP)
        since = time.monotonic()
        self.hold.unlink()
        hanging = self.assert_ended_for(launch, [pids[1], pids[2]], since, 0)
        self.assertEqual(hanging["phase"], "save")

    def test_rank_stopped_in_shutdown(self):
        env = self.held("outcome.json")
        self.hold.touch()
        launch = self.launch(*narrow("synthetic:150", epochs=1), watchdog_s=1, env=env)
        pids = self.pids(launch)
        launch.wait_for("the last file", self.is_held)
        os.kill(pids[0], signal.SIGSTOP)
        since = time.monotonic()
        self.hold.unlink()
        hanging = self.assert_ended_for(launch, [pids[1], pids[2]], since, 0)
        self.assertEqual(hanging["phase"], "shutdown")

    def test_disk_that_hangs_in_a_save(self):
        launch, pids = self.start_save("/step-")
        step = last_step(self.run_dir)
        launch.wait_for("steps beside the save", lambda: last_step(self.run_dir) > step + 1)
        hanging = self.assert_ended_for(launch, list(pids.values()), time.monotonic(), 0)
        self.assertEqual((hanging["saving_s"], hanging["process"]), (10, ""))

    def test_disk_that_hangs_for_the_report_as_well(self):
        launch, pids = self.start_last_save("/")
        took_s = self.wait_for_end(launch, list(pids.values()), time.monotonic())
        self.assertLess(took_s, 10 + LEAVING_S)
        ended = launch.finish()
        self.assertEqual(ended.code, 75, ended)
        self.assertIn("rank 0 on ", ended.stderr)
        self.assertIn("hangs in save of step", ended.stderr)
        self.assertEqual(self.reports(), [])

    def test_save_longer_than_a_step_may_take(self):
        launch, _ = self.start_last_save("/step-")
        time.sleep(4)
        self.assertIsNone(launch.process.poll(), "ended while it saved")
        self.hold.unlink()
        ended = launch.finish()
        self.assertEqual(ended.code, 75, ended)
        self.assertIn("Stopped at step", ended.stdout)
        self.assertEqual(self.reports(), [])


class FalseAlarmTest(HangTest):
    def test_four_ranks_a_core_and_a_hog(self):
        cores = sorted(os.sched_getaffinity(0))[:2]
        hogs = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in cores]
        for hog in hogs:
            self.addCleanup(hog.wait)
            self.addCleanup(hog.kill)
            os.sched_setaffinity(hog.pid, cores)
        whole = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, whole)
        os.sched_setaffinity(0, cores)  # what is started from here on inherits it
        # Steps so long that under this load they take longer than the second after which nobody waits for a short step.
        arguments = narrow("synthetic:14336", replicas=8, batch_size=256, width=8, epochs=2, limit_test=40)
        launch = self.launch(*arguments, watchdog_s=1, ranks=4 * len(cores))
        ended = launch.finish(timeout_s=3 * holdfast_run.HANG_S)
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.reports(), [])
        self.assertNotIn("no progress", ended.text)

    def test_job_suspended_for_longer_than_the_deadline(self):
        launch = self.launch(*narrow("synthetic:1500", epochs=3), watchdog_s=1)
        pids = self.pids(launch)
        launch.wait_for("step 20", lambda: last_step(self.run_dir) >= 20)
        everybody = [launch.process.pid, *pids.values()]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        step = last_step(self.run_dir)
        rows = map(json.loads, (self.run_dir / "metrics.jsonl").read_text().splitlines())
        longest_step_s = max(row["step_s"] for row in rows if "step_s" in row)
        time.sleep(3 + 20 * longest_step_s)
        self.assertEqual(last_step(self.run_dir), step, "it was not suspended")
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        ended = launch.finish()
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.reports(), [])


class TwoHostsTest(holdfast_run.OnTwoHosts, HangTest):
    def launch_on_hosts(self, watchdog_s: int) -> holdfast_run.Launch:
        program = [holdfast_run.binary, "train", *ENDLESS, "--run", self.run_dir, "--watchdog-seconds", watchdog_s]
        command = holdfast_run.mpirun([*self.options_of_mpirun(), "-np", 4, *program])
        launch = holdfast_run.Launch(command, {}, None)
        self.launches.append(launch)
        return launch

    def test_cable_pulled(self):
        launch = self.launch_on_hosts(watchdog_s=3)
        pids = self.pids(launch, 4)
        launch.wait_for("step 10", lambda: last_step(self.run_dir) >= 10)
        subprocess.run(["ip", "-n", "hftest2", "link", "set", "eth0", "down"], check=True)
        took_s = self.wait_for_end(launch, list(pids.values()), time.monotonic())
        launch.kill()  # mpirun itself may wait for the lost host for minutes
        try:
            ended = launch.finish(timeout_s=0)
        except AssertionError as still_there:
            ended = still_there
        reports = self.reports()
        self.assertEqual([report["host"] for report in reports], ["hftest1", "hftest2"], ended)
        self.assertLess(took_s, max(report["deadline_s"] for report in reports) + LEAVING_S)
        for report in reports:
            self.assertEqual([row["rank"] for row in report["ranks"] if row["hangs"]], [])
            self.assertEqual(report["hosts_without_report"], [])
            self.assertIn("hftest1 (ranks 0, 1), hftest2 (ranks 2, 3) is broken", report["conclusion"])
        outcome = json.loads((self.run_dir / "outcome.json").read_text())
        self.assertEqual((outcome["code"], outcome["reason"]), (75, reports[0]["conclusion"]))

    def test_rank_stopped_on_the_other_host(self):
        launch = self.launch_on_hosts(watchdog_s=3)
        pids = self.pids(launch, 4)
        launch.wait_for("step 10", lambda: last_step(self.run_dir) >= 10)
        os.kill(pids[3], signal.SIGSTOP)
        took_s = self.wait_for_end(launch, [pids[0], pids[1], pids[2]], time.monotonic())
        ended = launch.finish()
        self.assertEqual(ended.code, 75, ended)
        reports = self.reports()
        self.assertEqual([report["host"] for report in reports], ["hftest1", "hftest2"], ended)
        self.assertLess(took_s, max(report["deadline_s"] for report in reports) + LEAVING_S)
        for report in reports:
            self.assertIn("rank 3 on hftest2 hangs", report["conclusion"])
            self.assertIn("without hftest2", report["conclusion"])

    def test_all_ranks_of_a_host_stopped(self):
        launch = self.launch_on_hosts(watchdog_s=3)
        pids = self.pids(launch, 4)
        launch.wait_for("step 10", lambda: last_step(self.run_dir) >= 10)
        for rank in (2, 3):
            os.kill(pids[rank], signal.SIGSTOP)
        took_s = self.wait_for_end(launch, [pids[0], pids[1]], time.monotonic())
        ended = launch.finish()
        self.assertEqual(ended.code, 75, ended)
        [report] = self.reports()
        self.assertLess(took_s, report["deadline_s"] + LEAVING_S)
        self.assertEqual((report["host"], report["hosts_without_report"]), ("hftest1", ["hftest2"]))
        self.assertIn("host hftest2 (ranks 2, 3) has written no report", ended.stderr)


if __name__ == "__main__":
    holdfast_run.main()
