#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: modulefile_test.py CMAKE BUILD_DIR SOURCE_DIR VERSION [MODULECMD]

The installed modulefile in a real Lmod and a real Environment Modules (MODULECMD: its modulecmd.tcl): loaded, looked at,
unloaded, and the environment is what it was."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, BUILD, SOURCE, VERSION = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve(), sys.argv[4]
LMOD = os.environ.get("LMOD_INIT", "/usr/share/lmod/lmod/init/bash")
MODULECMD = [*sys.argv[5:], *glob.glob("/usr/lib/*/modulecmd.tcl"), *glob.glob("/usr/*/[mM]odules/libexec/modulecmd.tcl")]
PATH = "/usr/local/bin:/usr/bin:/bin"
MARK = "environment at this point:"


def install(prefix: Path, *arguments: str, build: Path = BUILD) -> None:
    command = [CMAKE, "--install", str(build), "--prefix", str(prefix), *arguments]
    ended = subprocess.run(command, text=True, capture_output=True)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"


class Modulefile:
    """The tests of both. START defines the command `module` in bash."""

    RESTORED_FROM = (0, 0)  # the first version that undoes the pushenv of a Tcl file; before, the file takes setenv

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="holdfast-module-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        install(cls.prefix)
        cls.modulefile = cls.prefix / f"share/modulefiles/holdfast/{VERSION}"
        cls.modules = cls.folder / "modulefiles"  # to put other ones into
        ended = subprocess.run(["bash", "--norc", "-c", f"{cls.START}\nmodule --version"], text=True, capture_output=True)
        numbers = re.search(r"(?:Version|Release) (\d+)\.(\d+)(?:\.(\d+))?", ended.stdout + ended.stderr)
        cls.restores = tuple(int(number or 0) for number in numbers.groups()) >= cls.RESTORED_FROM

    def add(self, name: str, text: str) -> None:
        path = self.modules / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.addCleanup(path.unlink)

    def run_script(self, script: str, **variables: str) -> tuple[list[dict[str, str]], str]:
        """The environments at each `look` of the script, and all that was printed."""
        self.modules.mkdir(exist_ok=True)
        text = f"""{self.START}
            look() {{ echo '{MARK}'; env; echo '{MARK}'; }}
            module use '{self.modules}' '{self.modulefile.parents[1]}'
            {script}"""
        environment = {"PATH": PATH, "HOME": str(self.folder), "LC_ALL": "C.UTF-8"} | variables
        ended = subprocess.run(["bash", "--norc", "-c", text], env=environment, text=True, capture_output=True)
        parts = ended.stdout.split(MARK + "\n")
        looks = [dict(line.split("=", 1) for line in part.splitlines() if "=" in line) for part in parts[1::2]]
        return looks, "".join(parts[0::2]) + ended.stderr

    def assert_ours_is_gone(self, environment: dict[str, str]) -> None:
        left = {name: value for name, value in environment.items() if "HOLDFAST" in name or str(self.prefix) in value}
        left = {name: value for name, value in left.items() if not re.match(r"MODULEPATH|__LMOD_REF_COUNT_MODULEPATH|_ModuleTable|_LM", name)}
        self.assertEqual(left, {})

    def test_load_and_unload(self):
        (before, loaded, after), text = self.run_script("look; module load holdfast; holdfast --version; look; module unload holdfast; look")
        self.assertIn(f"holdfast {VERSION}\n", text)
        self.assertEqual(loaded["PATH"], f"{self.prefix}/bin:{before['PATH']}")
        self.assertEqual(loaded["HOLDFAST_ROOT"], str(self.prefix))
        self.assertNotIn("LD_LIBRARY_PATH", loaded)
        self.assertEqual(after["PATH"], before["PATH"])
        self.assert_ours_is_gone(after)

    def test_in_any_order(self):
        script = "module load holdfast; module load other; module unload holdfast; look; module load holdfast; module purge; look"
        self.add("other/1", f"#%Module\nprepend-path PATH {self.folder}/other/bin\n")
        (first, second), text = self.run_script(script)
        self.assertTrue(first["PATH"].startswith(f"{self.folder}/other/bin"), text)
        self.assert_ours_is_gone(first)
        self.assert_ours_is_gone(second)
        self.assertNotIn(f"{self.folder}/other/bin", second["PATH"])

    def test_manual_pages(self):
        for before in (None, "/some/man", ":"):
            variables = {} if before is None else {"MANPATH": before}
            (start, loaded, after), _ = self.run_script("look; module load holdfast; look; module unload holdfast; look", **variables)
            folders = loaded["MANPATH"].split(":")
            self.assertEqual(folders[0], f"{self.prefix}/share/man")
            self.assertIn("", folders, "the system's own pages would be hidden")
            self.assertEqual(set(folders[1:]) - {""}, set(start.get("MANPATH", "").split(":")) - {""})
            self.assertEqual(after.get("MANPATH", "").strip(":"), start.get("MANPATH", "").strip(":"))
        if shutil.which("man"):
            _, text = self.run_script("module load holdfast; man -w holdfast-train")
            self.assertIn(f"{self.prefix}/share/man/man1/holdfast-train.1", text)

    def test_root_of_another_installation(self):
        (loaded, after), _ = self.run_script("module load holdfast; look; module unload holdfast; look", HOLDFAST_ROOT="/mine")
        self.assertEqual(loaded["HOLDFAST_ROOT"], str(self.prefix))
        self.assertEqual(after.get("HOLDFAST_ROOT"), "/mine" if self.restores else None)

    def test_program_accepts_what_is_set(self):
        """A HOLDFAST_ variable that it does not know is an error to it."""
        _, text = self.run_script('module load holdfast; holdfast info --json; echo "code $?"')
        self.assertIn("code 0", text)

    def test_help_and_whatis(self):
        _, text = self.run_script("module help holdfast")
        self.assertIn(f"Holdfast {VERSION}, in {self.prefix}", text)
        self.assertIn("$HOLDFAST_ROOT/share/holdfast/jobs", text)
        _, text = self.run_script("module whatis holdfast")
        self.assertRegex(text, rf"Version: {re.escape(VERSION)}")
        self.assertRegex(text, r"Description: trains image classifiers")

    def test_what_the_help_names_exists(self):
        _, text = self.run_script("module help holdfast")
        paths = re.findall(r"\$HOLDFAST_ROOT(/[\w/.-]+)", text)
        self.assertGreaterEqual(len(paths), 3)
        for path in paths:
            self.assertTrue((self.prefix / path[1:]).exists(), path)

    def test_one_of_the_family(self):
        other = self.modulefile.read_text().replace(str(self.prefix), "/other")
        self.add("holdfast/99", other)
        self.add("holdfast-gpu/1", other)
        for name in ("holdfast/99", "holdfast-gpu/1"):
            (environment,), text = self.run_script(f"module load holdfast/{VERSION}; module load {name}; look")
            ours = [folder for folder in environment["PATH"].split(":") if folder in (f"{self.prefix}/bin", "/other/bin")]
            self.assertEqual(len(ours), 1, f"two of a family are loaded\n{text}")

    def test_dependencies_come_from_the_cache(self):
        build = self.folder / "build"
        cache = dict(re.findall(r"(?m)^(HOLDFAST_TORCH_ROOT|CMAKE_GENERATOR|CMAKE_MAKE_PROGRAM):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text()))
        command = [CMAKE, "-S", SOURCE, "-B", build, "-G", cache["CMAKE_GENERATOR"], f"-DHOLDFAST_TORCH_ROOT={cache['HOLDFAST_TORCH_ROOT']}"]
        command += ["-DHOLDFAST_BUILD_TESTS=OFF", "-DHOLDFAST_MODULE_DEPENDENCIES=an-mpi/4.1;an-hdf5"]
        ended = subprocess.run(command, text=True, capture_output=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        install(self.folder / "second", "--component", "modulefile", build=build)
        self.add("holdfast/7", (self.folder / f"second/share/modulefiles/holdfast/{VERSION}").read_text())
        self.add("an-mpi/4.1", "#%Module\nsetenv AN_MPI yes\n")
        self.add("an-hdf5/1", "#%Module\nsetenv AN_HDF5 yes\n")
        (loaded, after), text = self.run_script("module load holdfast/7; look; module unload holdfast/7; look")
        self.assertEqual((loaded.get("AN_MPI"), loaded.get("AN_HDF5")), ("yes", "yes"), text)
        self.assert_ours_is_gone(after)
        shutil.rmtree(build)

    def test_prefix_with_odd_characters(self):
        """The file is read from elsewhere: Lmod cannot read a Tcl file below a folder with a space in its name."""
        prefix = self.folder / "it's a $prefix [of] spaces"
        install(prefix)
        self.add("holdfast/8", (prefix / f"share/modulefiles/holdfast/{VERSION}").read_text())
        (loaded, after), text = self.run_script("module load holdfast/8; look; holdfast --version; module unload holdfast/8; look")
        self.assertEqual(loaded["HOLDFAST_ROOT"], str(prefix))
        self.assertIn(f"holdfast {VERSION}\n", text)
        self.assert_ours_is_gone(after)


@unittest.skipUnless(Path(LMOD).exists(), f"no Lmod here ({LMOD})")
class Lmod(Modulefile, unittest.TestCase):
    START = f"source {LMOD}"
    RESTORED_FROM = (8, 7, 6)


@unittest.skipUnless(any(map(os.path.exists, MODULECMD)), "no Environment Modules here (modulecmd.tcl)")
class EnvironmentModules(Modulefile, unittest.TestCase):
    MODULECMD = next(filter(os.path.exists, MODULECMD), None)
    RESTORED_FROM = (5, 1)
    START = f"""module() {{ eval "$(tclsh '{MODULECMD}' bash "$@")"; }}"""

    def test_version_without_newer_commands(self):
        """As in Environment Modules before 5.1."""
        without = "foreach command {family pushenv depends-on} { catch {rename $command {}} }\n"
        self.add("holdfast/6", self.modulefile.read_text().replace("set version", without + "set version", 1))
        (loaded, after), text = self.run_script("module load holdfast/6; look; module unload holdfast/6; look")
        self.assertEqual(loaded.get("HOLDFAST_ROOT"), str(self.prefix), text)
        self.assertNotIn("MODULES_FAMILY_HOLDFAST", loaded)
        self.assert_ours_is_gone(after)


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
