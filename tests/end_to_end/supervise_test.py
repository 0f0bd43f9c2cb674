#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""holdfast supervise: what breaks a launch is answered by another, with as many ranks as can start, and in the end the run has the
bytes of an undisturbed one; what only a person can mend, or a person wanted, ends it.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import checkpoints, last_step, mpirun, narrow  # noqa: E402

STEPS = 100
FLAGS = narrow("synthetic:150", epochs=STEPS // 10, save_every_steps=5)
ENDLESS = narrow("synthetic:150", epochs=1000000, save_every_steps=5)
FULL_DISK = [*ENDLESS, "--log-indices", "/dev/full"]  # code 75 in the first step
MPIRUN = " ".join(mpirun())


class SuperviseTest(holdfast_run.TestCase):
    def setUp(self):
        super().setUp()
        self.run_dir = self.folder / "run"

    def supervise(self, *flags, train: list = ENDLESS, np: int = 4, env: dict = {}, mpirun: str = MPIRUN) -> holdfast_run.Launch:
        """`holdfast supervise FLAGS -- train TRAIN` on the test's run directory."""
        command = ["supervise", "--np", np, "--mpirun", mpirun, *flags, "--", "train", *train, "--run", self.run_dir]
        return self.start(*command, env=env)

    def processes(self, launch: holdfast_run.Launch, name: str = "train") -> dict[int | None, int]:
        """Rank to process of the launch that runs now (None: mpirun), without those of a preflight."""
        found = {}
        for pid, rank in launch.processes().items():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if name.encode() in words and words[1] != b"supervise":
                found[rank] = pid
        return found

    def wait_for_ranks(self, launch: holdfast_run.Launch, ranks: int) -> dict[int | None, int]:
        """Once a launch of so many ranks trains."""
        pids = {}

        def complete() -> bool:
            pids.clear()  # of the launch before, while it ended
            pids.update(self.processes(launch))
            return set(pids) == {None, *range(ranks)}

        launch.wait_for("all ranks", complete)
        begun = last_step(self.run_dir)
        launch.wait_for("new steps", lambda: last_step(self.run_dir) >= begun + 3)
        return pids

    def outcome(self) -> dict:
        return json.loads((self.run_dir / "outcome.json").read_text())

    def events(self, ended: holdfast_run.Ended) -> list[str]:
        return [line[11:] for line in ended.stdout.splitlines() if line.startswith("supervise: ")]

    def ranks_started(self, ended: holdfast_run.Ended) -> list[int]:
        """The ranks of each."""
        return [int(n) for n in re.findall(r"(?m)^supervise: started (\d+) ranks", ended.stdout)]

    def assert_goes_on_as_if_undisturbed(self, ranks: int) -> None:
        """An endless run that has been asked to stop."""
        flags = [*ENDLESS, "--max-steps", max(checkpoints(self.run_dir)) + 2]
        undisturbed = self.folder / "undisturbed"
        self.run_ok("train", *flags, "--run", undisturbed, ranks=2)
        self.finish(self.supervise(train=flags, np=ranks), 0)
        self.assert_same_result(self.run_dir, undisturbed)

    def finish(self, launch: holdfast_run.Launch, code: int, timeout_s: float = holdfast_run.HANG_S) -> holdfast_run.Ended:
        ended = launch.finish(timeout_s)
        self.assertEqual(ended.code, code, ended)
        self.assertEqual(launch.left_over(), {}, ended)
        self.assertIn(f"ending with code {code}", self.events(ended)[-1], ended)
        return ended


class Restarts(SuperviseTest, holdfast_run.TestCaseWithUndisturbedRun):
    FLAGS = FLAGS

    def assert_goes_on_after(self, disturb, *lines: str, train: list = FLAGS) -> None:
        launch = self.supervise(train=train)
        disturb(self.wait_for_ranks(launch, 4))
        ended = self.finish(launch, 0)
        self.assertEqual(self.ranks_started(ended), [4, 4], ended)
        self.assertIn("restart 1 of 3 in 1 s", ended.stdout)
        for line in lines:
            self.assertRegex(ended.stdout, line)
        self.assert_same_result(self.run_dir, self.undisturbed)
        self.run_ok("verify", self.run_dir)

    def test_one_rank_killed(self):
        self.assert_goes_on_after(lambda pids: os.kill(pids[2], signal.SIGKILL), r"ended with code 137 \(no outcome")

    def test_all_ranks_killed(self):
        self.assert_goes_on_after(lambda pids: [os.kill(pids[rank], signal.SIGKILL) for rank in range(4)], "ended with code 137")

    def test_mpirun_killed(self):
        self.assert_goes_on_after(lambda pids: os.kill(pids[None], signal.SIGKILL), "ended with code 137")

    def test_one_rank_stopped(self):
        """The watchdog ends the launch."""
        stop = lambda pids: os.kill(pids[3], signal.SIGSTOP)  # noqa: E731
        self.assert_goes_on_after(stop, r"ended with code 75 \(.*rank 3 on .* hangs", train=[*FLAGS, "--watchdog-seconds", 2])

    def test_as_many_ranks_as_have_a_slot(self):
        hosts = self.folder / 'my "hosts"'
        hosts.write_text("localhost slots=4\n")
        launch = self.supervise("--min-np", 2, train=ENDLESS, mpirun=f"mpirun --bind-to none --hostfile '{hosts}'")
        for ranks, slots_then in ((4, 2), (2, 4)):
            pids = self.wait_for_ranks(launch, ranks)
            hosts.write_text(f"localhost slots={slots_then}\n")
            os.kill(pids[1], signal.SIGKILL)
        self.wait_for_ranks(launch, 4)
        launch.process.send_signal(signal.SIGTERM)
        ended = self.finish(launch, 75)
        self.assertEqual(self.ranks_started(ended), [4, 2, 4], ended)
        self.assertRegex(ended.stdout, r"4 ranks cannot start now \(code 1\): There are not enough slots")
        self.assertIn("3 ranks cannot start now", ended.stdout)
        self.assert_goes_on_as_if_undisturbed(ranks=4)

    def test_what_lingers_is_killed(self):
        scripts = {"mpirun": f'{MPIRUN} "$@"; sleep 1000', "a rank": f'sleep 1000 & exec {MPIRUN} "$@"'}
        for who, script in scripts.items():
            with self.subTest(who):
                self.run_dir = self.folder / who
                lingering = self.folder / "lingering mpirun"
                lingering.write_text(f'#!/bin/sh\ncase "$*" in *train*) {script} ;; *) exec {MPIRUN} "$@" ;; esac\n')
                lingering.chmod(0o755)
                launch = self.supervise(train=FLAGS, np=2, mpirun=f"'{lingering}'")
                ended = self.finish(launch, 0)
                self.assertRegex(ended.stdout, f"supervise: {who} is still there 10 s after the end of .*; killing it")
                self.assertEqual(self.ranks_started(ended), [2])
                self.assert_same_result(self.run_dir, self.undisturbed)


class Ends(SuperviseTest):
    def test_what_only_a_person_can_mend(self):
        ended = self.finish(self.supervise(train=narrow(self.folder / "nothing"), np=2), 93)
        self.assertEqual(self.ranks_started(ended), [2], ended)

    def test_no_progress(self):
        ended = self.finish(self.supervise("--max-restarts", 9, train=FULL_DISK, np=2), 93)
        self.assertEqual(self.ranks_started(ended), [2, 2, 2], ended)
        self.assertIn("no progress: 3 launches in a row", ended.stdout)

    def test_restarts_are_limited(self):
        ended = self.finish(self.supervise("--max-restarts", 1, train=FULL_DISK, np=2), 75)
        self.assertEqual(self.ranks_started(ended), [2, 2], ended)
        self.assertIn("after 1 restarts", self.events(ended)[-1])

    def test_another_launch_owns_the_run(self):
        owner = self.start("train", *ENDLESS, "--run", self.run_dir)
        owner.wait_for("a step", lambda: last_step(self.run_dir) >= 0)
        ended = self.finish(self.supervise(np=2), 94)
        self.assertEqual(self.ranks_started(ended), [2], ended)
        self.assertIsNone(owner.process.poll())
        self.assertFalse((self.run_dir / "drain").exists())
        owner.kill()
        owner.finish()

    def test_too_few_ranks(self):
        hosts = self.folder / "hosts"
        hosts.write_text("localhost slots=2\n")
        here = f"mpirun --bind-to none --hostfile {hosts}"
        ended = self.finish(self.supervise("--min-np", 3, "--max-restarts", 1, mpirun=here), 75)
        self.assertEqual(self.ranks_started(ended), [], ended)
        self.assertIn("too few ranks can start", self.events(ended)[-1])
        self.assertNotIn("with --replicas and --threads", ended.stdout)
        # Without --replicas and --threads the result would depend on how many start.
        index = ENDLESS.index("--threads")
        new = ENDLESS[:index] + ENDLESS[index + 2 :]
        ended = self.finish(self.supervise("--max-restarts", 0, train=new, mpirun=here), 75)
        self.assertEqual(self.ranks_started(ended), [], ended)
        self.assertIn("with --replicas and --threads", ended.stdout)
        self.assertFalse(self.run_dir.exists())

    def test_as_many_ranks_as_replicas(self):
        ended = self.finish(self.supervise(train=narrow("synthetic:150", epochs=1, replicas=2), np=3), 0)
        self.assertEqual(self.ranks_started(ended), [2], ended)
        self.assertRegex(ended.stdout, r"supervise: 3 ranks cannot start now \(code 93\): error: ranks: .*for 2 replicas")

    def test_as_many_ranks_as_gpus(self):
        """As a program with CUDA finds no driver behind such a GPU (75), and one without no CUDA (93), the launch itself fails."""
        holdfast_run.binary, program = holdfast_run.binary.parents[1] / "tests/holdfast_with_fake_gpus", holdfast_run.binary
        self.addCleanup(setattr, holdfast_run, "binary", program)
        gpus = {"FAKE_GPUS": "GPU-a"}
        launch = self.supervise("--max-restarts", 0, train=narrow(device="auto", epochs=1), np=2, env=gpus)
        ended = launch.finish()
        self.assertIn(ended.code, (75, 93), ended)
        self.assertEqual(self.ranks_started(ended), [1], ended)
        self.assertRegex(ended.stdout, r"2 ranks cannot start now \(code 93\): error: devices: 2 ranks .* but 1 GPUs.*; error: gpus-per-task: ")
        ended = self.finish(self.supervise("--min-np", 2, train=narrow(device="auto", epochs=1), np=2, env=gpus), 93)
        self.assertEqual(self.ranks_started(ended), [], ended)
        ended = self.finish(self.supervise(train=narrow(epochs=1), np=2, env=gpus), 0)
        self.assertEqual(self.ranks_started(ended), [2], ended)

    def test_warnings_do_not_stop_it(self):
        ended = self.finish(self.supervise(train=narrow(epochs=1), np=2, env={"SLURM_JOB_NUM_NODES": 2}), 0)
        self.assertEqual(self.ranks_started(ended), [2], ended)
        self.assertRegex(ended.stdout, "supervise: 2 ranks: warning: ranks: ")

    def test_no_mpirun(self):
        ended = self.finish(self.supervise(mpirun="no-such-mpirun"), 93)
        self.assertIn("cannot run 'no-such-mpirun --version'", ended.stdout)

    def test_no_mpirun_at_all(self):
        for mpirun, word in (("mpirun 'x", "(code 2: /bin/sh: "), ("false", "(code 1: ")):
            with self.subTest(mpirun):
                ended = self.finish(self.supervise(mpirun=mpirun), 93)
                self.assertEqual(len(self.events(ended)), 1, ended)
                self.assertIn(f"cannot run '{mpirun} --version' {word}", ended.stdout)


class Stops(SuperviseTest):
    def assert_saved(self, ended: holdfast_run.Ended) -> None:
        outcome = self.outcome()
        self.assertEqual((outcome["code"], outcome["asked_to_stop"]), (75, True), ended)
        self.assertEqual(outcome["step"], max(checkpoints(self.run_dir)), ended)
        self.assertEqual(list(self.run_dir.glob("writer-*")), [], "the run was not released")

    def test_signals(self):
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            with self.subTest(number.name):
                launch = self.supervise(np=2)
                self.wait_for_ranks(launch, 2)
                launch.process.send_signal(number)
                ended = self.finish(launch, 75)
                self.assert_saved(ended)
                self.assertEqual(self.ranks_started(ended), [2], ended)
                self.assertIn(f"got {number.name[3:]}: ", ended.stdout)

    def test_hang_up_under_nohup(self):
        program = [holdfast_run.binary, "supervise", "--np", 1, "--mpirun", MPIRUN, "--", "train", *ENDLESS, "--run", self.run_dir]
        launch = holdfast_run.Launch(["nohup", *program], {}, self.folder)
        self.addCleanup(launch.kill)
        self.wait_for_ranks(launch, 1)
        launch.process.send_signal(signal.SIGHUP)
        step = last_step(self.run_dir)
        launch.wait_for("more steps", lambda: last_step(self.run_dir) >= step + 100)
        launch.process.send_signal(signal.SIGTERM)
        ended = self.finish(launch, 75)
        self.assertNotIn("got HUP", ended.stdout)
        self.assertIn("got TERM: ", ended.stdout)

    def test_signal_before_the_launch_is_ready(self):
        launch = self.supervise(np=2)
        launch.wait_for("the launch", lambda: None in self.processes(launch))
        launch.process.send_signal(signal.SIGTERM)
        self.assert_saved(self.finish(launch, 75))

    def test_signal_during_preflight_and_back_off(self):
        launch = self.supervise(np=2)
        launch.wait_for("the preflight", lambda: set(self.processes(launch, PREFLIGHT)) > {None})
        launch.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.ranks_started(self.finish(launch, 75)), [])
        launch = self.supervise("--max-restarts", 9, np=2, train=FULL_DISK)
        output = launch.output[0]
        launch.wait_for("a restart", lambda: b"restart 2 of 9" in os.pread(output.fileno(), 1 << 20, 0))
        launch.process.send_signal(signal.SIGTERM)
        self.assertIn("asked to stop before the restart", self.events(self.finish(launch, 75))[-1])

    def test_drain_file(self):
        launch = self.supervise(np=2)
        self.wait_for_ranks(launch, 2)
        (self.run_dir / "drain").touch()
        ended = self.finish(launch, 75)
        self.assert_saved(ended)
        self.assertEqual(self.ranks_started(ended), [2], ended)

    def test_killed_itself(self):
        launch = self.supervise(np=2)
        self.wait_for_ranks(launch, 2)
        launch.process.kill()
        self.assertEqual(launch.left_over(grace_s=60), {})
        self.assert_saved(launch.finish())

    def in_terminal(self, np: int) -> tuple[holdfast_run.Launch, int]:
        """In the foreground of a terminal of its own, and the other end of it."""
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)

        class TerminalLaunch(holdfast_run.Launch):
            def __init__(launch, command: list):
                launch.command, launch.mark = command, f"{holdfast_run.Launch.MARK}={time.monotonic_ns()}"
                launch.output = []
                env = holdfast_run.environment(dict([launch.mark.split("=")]))
                launch.process = subprocess.Popen(
                    list(map(str, command)), env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                )

            def finish(launch, timeout_s: float = holdfast_run.HANG_S) -> holdfast_run.Ended:
                text, deadline = b"", time.monotonic() + timeout_s
                os.set_blocking(ours, False)
                while (code := launch.process.poll()) is None and time.monotonic() < deadline:
                    text += read_available(ours)
                    time.sleep(0.05)
                return holdfast_run.Ended(launch.command, code, (text + read_available(ours)).decode().replace("\r\n", "\n"), "")

        command = [holdfast_run.binary, "supervise", "--np", np, "--mpirun", MPIRUN]
        launch = TerminalLaunch([*command, "--", "train", *ENDLESS, "--run", self.run_dir])
        os.close(theirs)
        self.addCleanup(launch.kill)
        return launch, ours

    def test_interrupt_in_a_terminal(self):
        launch, terminal = self.in_terminal(2)
        pids = self.wait_for_ranks(launch, 2)
        self.assertEqual(os.getsid(pids[None]), pids[None], "the terminal would interrupt mpirun as well")
        os.write(terminal, b"\x03")
        ended = self.finish(launch, 75)
        self.assert_saved(ended)
        self.assertIn("got INT: ", ended.stdout)
        self.assert_goes_on_as_if_undisturbed(ranks=2)

    def test_second_interrupt_in_a_terminal(self):
        launch, terminal = self.in_terminal(2)
        pids = self.wait_for_ranks(launch, 2)
        os.kill(pids[1], signal.SIGSTOP)  # so that it cannot save
        os.write(terminal, b"\x03")
        time.sleep(2)
        self.assertIsNone(launch.process.poll())
        os.write(terminal, b"\x03")
        ended = self.finish(launch, 75)
        self.assertIn("interrupted again", ended.stdout)

    def test_terminal_closed(self):
        launch, terminal = self.in_terminal(2)
        self.wait_for_ranks(launch, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), terminal)
        self.assertEqual(launch.process.wait(holdfast_run.HANG_S), 75)
        self.assertEqual(launch.left_over(), {})
        self.assert_saved(None)


PREFLIGHT = "doctor"


def read_available(descriptor: int) -> bytes:
    text = b""
    try:
        while part := os.read(descriptor, 65536):
            text += part
    except (BlockingIOError, OSError):
        pass
    return text


class TwoHosts(holdfast_run.OnTwoHosts, SuperviseTest):
    def test_lost_host_of_the_owner(self):
        """Rank 0 and the daemon above it stand, as if out of reach: nobody can end them, and nobody can know whether they will."""
        launch = self.supervise(mpirun=" ".join([MPIRUN, *self.options_of_mpirun()]))
        pids = self.wait_for_ranks(launch, 4)
        status = Path(f"/proc/{pids[0]}/status").read_text()
        lost = [int(re.search(r"PPid:\t(\d+)", status)[1]), pids[0]]
        for pid in lost:
            os.kill(pid, signal.SIGSTOP)
        owner = next(self.run_dir.glob("writer-*")) / "owner"
        owner.write_text(re.sub("(?m)^boot_id .*$", "boot_id another", owner.read_text()))
        started = os.pread(launch.output[0].fileno(), 1 << 20, 0).decode()
        os.kill(int(re.search(r"under process (\d+)", started)[1]), signal.SIGKILL)
        self.wait_for_second_launch(launch, lost)
        for pid in lost:
            os.kill(pid, signal.SIGCONT)
        step = last_step(self.run_dir)
        launch.wait_for("more steps", lambda: last_step(self.run_dir) > step + 10)
        launch.process.send_signal(signal.SIGTERM)
        ended = self.finish(launch, 75)
        self.assertEqual(self.ranks_started(ended), [4, 4], ended)
        self.assertIn("Taking over from process", ended.stdout)
        self.assertNotIn("no sign of life", ended.text)
        self.run_ok("verify", self.run_dir)

    def wait_for_second_launch(self, launch: holdfast_run.Launch, lost: list[int]) -> None:
        def ranks() -> set:
            found = {pid: rank for pid, rank in launch.processes().items() if pid not in lost}
            return {rank for pid, rank in found.items() if rank is not None and b"train" in Path(f"/proc/{pid}/cmdline").read_bytes()}

        launch.wait_for("the second launch", lambda: ranks() == {0, 1, 2, 3})
        step = last_step(self.run_dir)
        launch.wait_for("its steps", lambda: last_step(self.run_dir) > step + 5)


class CommandLine(SuperviseTest):
    def assert_usage_error(self, *arguments, words: list[str], **how) -> None:
        ended = holdfast_run.run("supervise", *arguments, cwd=self.folder, **how)
        self.assert_fails(ended, 2, *words)
        self.assertEqual(len(re.findall("(?m)^error: ", ended.stderr)), 1, ended)
        self.assertNotIn("supervise: ", ended.stdout)

    def test_usage_errors(self):
        self.assert_usage_error("--", "train", words=["--np"])
        self.assert_usage_error("--np", 2, words=["--"])
        self.assert_usage_error("--np", 2, "--", words=["--"])
        self.assert_usage_error("--np", 2, "train", words=["comes after --, as in: holdfast supervise"])
        self.assert_usage_error("--np", 2, "--", "eval", "run", words=["eval", "only train"])
        self.assert_usage_error("--np", 0, "--", "train", words=["--np"])
        self.assert_usage_error("--np", 2, "--min-np", 3, "--", "train", words=["--min-np 3", "--np 2"])
        self.assert_usage_error("--np", 2, "--max-restarts", -1, "--", "train", words=["--max-restarts"])
        self.assert_usage_error("--np", 2, "--", "train", "--epoks", 3, words=["--epoks"])
        self.assert_usage_error("--np", 2, "--", "train", env={"HOLDFAST_EPOKS": 3}, words=["HOLDFAST_EPOKS"])
        self.assert_usage_error("--np", 2, "--", "train", ranks=1, words=["itself started by mpirun"])
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_help(self):
        self.assertIn("holdfast supervise --np 4 -- train", self.run_ok("supervise", "--help").stdout)
        self.assertIn("Usage: holdfast train", self.run_ok("supervise", "--np", 2, "--", "train", "--help").stdout)

    def test_everything_from_variables_and_a_file(self):
        """The run is asked to stop in its folder, which has a name that a shell would take apart."""
        self.run_dir = self.folder / "it's my run; $HOME"
        config = self.folder / "a config.toml"
        config.write_text(f'run = "{self.run_dir.name}"\nsave-every-epochs = 7\n')
        env = {"HOLDFAST_MPIRUN": MPIRUN, "HOLDFAST_NP": 1, "HOLDFAST_CONFIG": config.name}
        launch = self.start("supervise", "--", "train", *ENDLESS, env=env, cwd=self.folder)
        self.wait_for_ranks(launch, 1)
        launch.process.send_signal(signal.SIGUSR1)
        self.finish(launch, 75)
        self.assertEqual(self.outcome()["code"], 75)


if __name__ == "__main__":
    holdfast_run.main()
