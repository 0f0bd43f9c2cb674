#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: manual_test.py HOLDFAST SOURCE_DIR

The man pages, as `man` shows them, and the shell completions tell of exactly the commands and flags of --help."""
import functools
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
PROGRAM, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
SCRIPT = SOURCE / "scripts/document-flags"
FLAGS_OF_OTHER_PROGRAMS = {"--bind-to", "--host"}  # mpirun's, in examples
REPAIR = "run scripts/document-flags build/bin/holdfast and commit what it changes"


def help_text(*command: str) -> str:
    return subprocess.run([PROGRAM, *command, "--help"], check=True, text=True, capture_output=True).stdout


def flags_in_help(text: str) -> list[str]:
    return re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", text)


COMMANDS = re.findall(r"(?m)^  ([a-z]+) ", help_text().partition("Subcommands:")[2])
FLAGS = {command: flags_in_help(help_text(command)) for command in COMMANDS}


@functools.cache
def shown(name: str) -> str:
    """A page as a reader sees it, in lines too long to be broken, and whatever the formatter complains of."""
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "1000"}
    command = [man(), "--warnings", "--no-hyphenation", "--local-file", SOURCE / f"man/{name}.1"]
    ended = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    if ended.stderr:
        raise AssertionError(f"{name}.1: {ended.stderr}")
    return re.sub(r".\x08", "", ended.stdout)


@functools.cache
def man() -> str:
    """The real one: images of Ubuntu put a stub in its place."""
    for name in ("man.REAL", "man"):
        if shutil.which(name) and "2." in subprocess.run([name, "--version"], text=True, capture_output=True).stdout:
            return name
    raise unittest.SkipTest("no man (man-db) here")


class Pages(unittest.TestCase):
    def test_written_from_help(self):
        ended = subprocess.run([sys.executable, SCRIPT, "--check", PROGRAM], text=True, capture_output=True)
        self.assertEqual(ended.returncode, 0, f"{ended.stdout}\n{ended.stderr}")

    def test_one_page_per_command(self):
        self.assertGreaterEqual(len(COMMANDS), 8)
        pages = {path.stem for path in SOURCE.glob("man/*.1")}
        self.assertEqual(pages, {"holdfast", *(f"holdfast-{command}" for command in COMMANDS)}, REPAIR)

    def test_options_are_those_of_help(self):
        for command in COMMANDS:
            text = shown(f"holdfast-{command}")
            self.assertIn(f"holdfast {command}", text)
            self.assertEqual(re.findall(r"(?m)^ {5}(--[\w-]+)", text), FLAGS[command], f"holdfast-{command}.1: {REPAIR}")

    def test_overview_lists_every_command(self):
        text = shown("holdfast")
        for command in COMMANDS:
            self.assertIn(f"holdfast-{command}(1)", text, REPAIR)
        self.assertEqual(set(re.findall(r"holdfast-([a-z]+)\(1\)", text)), set(COMMANDS), REPAIR)

    def test_no_page_names_a_flag_that_does_not_exist(self):
        known = FLAGS_OF_OTHER_PROGRAMS | {flag for flags in FLAGS.values() for flag in flags} | set(flags_in_help(help_text()))
        for path in SOURCE.glob("man/*.1"):
            text = shown(path.stem)
            for name in re.findall(r"(?<![\w-])--[a-z][a-z-]*\*?", text):
                exists = any(flag.startswith(name[:-1]) for flag in known) if name.endswith("*") else name in known
                self.assertTrue(exists, f"{path}: {name}")
            # A hyphen that is no ASCII one could not be copied into a shell.
            self.assertNotRegex(text, r"[\u2010\u2212]", path)

    def test_pages_refer_to_pages_that_exist(self):
        for path in SOURCE.glob("man/*.1"):
            for name in re.findall(r"\b(holdfast[a-z-]*)\(1\)", shown(path.stem)):
                self.assertTrue((SOURCE / f"man/{name}.1").exists(), f"{path} refers to {name}(1)")


class Guides(unittest.TestCase):
    def test_every_cmake_option_is_in_the_table(self):
        files = [SOURCE / "CMakeLists.txt", *SOURCE.glob("cmake/*.cmake"), *SOURCE.glob("tests/**/CMakeLists.txt")]
        text = "".join(file.read_text() for file in files)
        options = set(re.findall(r"\boption\((\w+)", text)) | set(re.findall(r"set\((HOLDFAST_\w+) [^)]*\bCACHE\b", text))
        rows = re.findall(r"(?m)^\| (`(?:HOLDFAST|CMAKE).*?`) \|", (SOURCE / "docs/installation.md").read_text())
        documented = set(re.findall(r"`(\w+)`", " ".join(rows)))
        self.assertEqual(documented - {"CMAKE_CUDA_ARCHITECTURES"}, options)

    def test_every_installed_folder_is_in_the_list(self):
        """cluster.install compares the tree with the sources; here it is what the guide promises."""
        text = (SOURCE / "docs/installation.md").read_text()
        rules = re.findall(r"DESTINATION (share/[\w/-]+)", (SOURCE / "cmake/HoldfastInstall.cmake").read_text())
        self.assertGreaterEqual(len(rules), 8)
        for folder in rules:
            self.assertIn(folder, text)


class ReadingHelp(unittest.TestCase):
    """document-flags reads what CLI11 prints, in the form of its versions: 2.1 (Debian 12), and newer ones."""

    @classmethod
    def setUpClass(cls):
        loader = importlib.machinery.SourceFileLoader("document_flags", str(SCRIPT))
        cls.script = importlib.util.module_from_spec(importlib.util.spec_from_loader("document_flags", loader))
        sys.modules["document_flags"] = cls.script  # dataclasses look themselves up there
        loader.exec_module(cls.script)

    def test_forms_of_a_default(self):
        for header in ("--keep INT:INT in [2 - 1000000]=3 (Env:HOLDFAST_KEEP)", "--keep INT:INT in [2 - 1000000] [3]  (Env:HOLDFAST_KEEP)"):
            entry = self.script.parse_entry(header, "Newest")
            self.assertEqual((entry.name, entry.alternatives, entry.default, entry.limits), ("--keep", ["N"], "3", "2 to 1000000"))
        for header in ("--progress TEXT:{auto,never}=auto (Env:X)", "--progress TEXT:{auto,never} [auto]  (Env:X)"):
            entry = self.script.parse_entry(header, "")
            self.assertEqual((entry.alternatives, entry.default), (["auto", "never"], "auto"))

    def test_entries_without_a_default(self):
        parse = self.script.parse_entry
        self.assertEqual(parse("-h,--help", "").alternatives, [])
        self.assertEqual(parse("--json (Env:HOLDFAST_JSON)", "").alternatives, [])
        self.assertEqual(parse("path FILE|DIR REQUIRED", "").alternatives, ["FILE", "DIR"])
        self.assertEqual(parse("--step INT:POSITIVE REQUIRED (Env:X)", ""), parse("--step INT:POSITIVE", ""))
        self.assertEqual(parse("--config FILE:FILE (Env:X)", "").alternatives, ["FILE"])
        self.assertEqual(parse("--quality INT:INT in [1 - 100] (Env:X)", "").limits, "1 to 100")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
