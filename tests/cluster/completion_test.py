#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: completion_test.py HOLDFAST SOURCE_DIR

Types into a real bash and a real zsh, and reads what completion made of it: a stand-in for the program prints its arguments."""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
HANG_S = 60
SKIPPED = 77
# The stand-in. The quotes keep the marks out of what the terminal echoes.
STAND_IN = """holdfast() { printf 'ar''guments'; printf '<%s>' "$@"; echo 'e''nd'; }"""


def help_text(*command: str) -> str:
    return subprocess.run([PROGRAM, *command, "--help"], check=True, text=True, capture_output=True).stdout


COMMANDS = re.findall(r"(?m)^  ([a-z]+) ", help_text().partition("Subcommands:")[2])
FLAGS = {command: re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", help_text(command)) for command in COMMANDS}


def words_accepted(command: str, flag: str) -> set[str]:
    """Those that the program names when it refuses another."""
    ended = subprocess.run([PROGRAM, command, flag, "nonsense", "--dry-run"], text=True, capture_output=True)
    found = re.search(r"must be one of (.*)|not in \{(.*)\}", ended.stderr)
    assert ended.returncode == 2 and found, f"{command} {flag} nonsense: {ended.returncode} {ended.stderr}"
    return set(re.split(r", ?", found[1] or found[2]))


class Shell:
    def __init__(self, command: list[str], folder: str, setup: str):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            environment = {"PATH": os.environ["PATH"], "HOME": folder, "TERM": "dumb", "INPUTRC": "/dev/null"}
            os.execvpe(command[0], command, environment)
        self.send(f"{setup}\n{STAND_IN}\necho 're''ady'\n")
        self.read_until("ready")

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def read_until(self, mark: str) -> str:
        text, deadline = "", time.monotonic() + HANG_S
        while mark not in text:
            if not select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no '{mark}' came, only: {text}")
            text += os.read(self.terminal, 65536).decode(errors="replace")
        return text

    def arguments(self, typed: str) -> list[str]:
        self.send(typed + "\n")
        return re.findall(r"<([^>]*)>", self.read_until("end").rpartition("arguments")[2])

    def close(self) -> None:
        os.close(self.terminal)  # hangs it up
        os.waitpid(self.pid, 0)


class Completion:
    """The tests of both shells. ALL: the keys that put every possible completion into the line."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which(cls.COMMAND[0]):
            raise unittest.SkipTest(f"no {cls.COMMAND[0]} here")
        folder = tempfile.TemporaryDirectory(prefix="holdfast-completion-")
        cls.addClassCleanup(folder.cleanup)
        (Path(folder.name) / "my run's dir").mkdir()
        (Path(folder.name) / "my file.h5").touch()
        cls.shell = Shell(cls.COMMAND, folder.name, cls.SETUP)
        cls.addClassCleanup(cls.shell.close)

    def complete_all(self, typed: str) -> list[str]:
        """Every completion of the last word of `typed`."""
        return self.shell.arguments(typed + self.ALL)[len(typed.split()) - (0 if typed.endswith(" ") else 1) - 1 :]

    def test_commands(self):
        self.assertEqual(sorted(self.complete_all("holdfast ")), sorted(COMMANDS))
        self.assertEqual(self.shell.arguments("holdfast insp\t"), ["inspect"])

    def test_every_flag_of_every_command(self):
        for command in COMMANDS:
            got = {word.rstrip("=") for word in self.complete_all(f"holdfast {command} --")}
            self.assertEqual(got, set(FLAGS[command]), command)

    def test_one_flag(self):
        self.assertEqual([word.rstrip("=") for word in self.shell.arguments("holdfast train --batch-s\t")], ["train", "--batch-size"])

    def test_a_flag_that_is_given_is_not_offered_again(self):
        self.assertNotIn("--seed", {word.rstrip("=") for word in self.complete_all("holdfast train --seed 3 --s")})

    def test_words_the_program_accepts(self):
        for flag in ("--device", "--model", "--reduction", "--tail", "--progress"):
            accepted = words_accepted("train", flag)
            self.assertGreaterEqual(len(accepted), 2)
            self.assertEqual(set(self.complete_all(f"holdfast train {flag} ")), accepted, flag)
        self.assertEqual(self.shell.arguments("holdfast train --device=cu\t"), ["train", "--device=cuda"])
        self.assertEqual(self.shell.arguments("holdfast train --resume n\t"), ["train", "--resume", "never"])
        self.assertEqual(self.shell.arguments("holdfast train --data synth\t"), ["train", "--data", "synthetic"])

    @unittest.skipUnless("supervise" in COMMANDS, "no such command")
    def test_command_after_another(self):
        self.assertEqual(self.shell.arguments("holdfast supervise --np 2 -- tr\t")[4:], ["train"])
        words = self.shell.arguments("holdfast supervise --np 2 -- train --batch-s\t")
        self.assertEqual([word.rstrip("=") for word in words[4:]], ["train", "--batch-size"])
        words = self.shell.arguments("holdfast supervise --np 2 -- train --model resnet3\t")
        self.assertEqual(words[4:], ["train", "--model", "resnet34"])

    def test_files_and_folders(self):
        def path(typed: str) -> str:
            return self.shell.arguments(typed)[-1].rstrip("/")

        self.assertEqual(path("holdfast verify my\\ r\t"), "my run's dir")
        self.assertEqual(path("holdfast train --resume my\\ f\t"), "my file.h5")
        self.assertEqual(path("holdfast train --data my\\ r\t"), "my run's dir")
        self.assertEqual(path("holdfast train --run my\t"), "my run's dir", "only folders")

    def test_nothing_where_a_number_belongs(self):
        self.assertEqual(self.complete_all("holdfast train --seed "), [])


class Bash(Completion, unittest.TestCase):
    COMMAND = ["bash", "--norc", "--noprofile", "-i"]
    SETUP = f"PS1=; source '{SOURCE}/completions/holdfast.bash'"
    ALL = "\x1b*"  # insert-completions


class Zsh(Completion, unittest.TestCase):
    COMMAND = ["zsh", "-f", "-i"]
    ALL = "\x18*"
    SETUP = f"""PS1=
        fpath=('{SOURCE}/completions' $fpath)
        autoload -Uz compinit
        compinit -u -D
        zle -C all complete-word _generic
        bindkey '^X*' all
        zstyle ':completion:all:*' completer _all_matches _complete
        zstyle ':completion:all:*' insert yes
        zstyle ':completion:*' insert-tab false"""


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else SKIPPED if result.skipped else 0)
