#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: install_test.py CMAKE BUILD_DIR SOURCE_DIR VERSION

cmake --install into a folder with a space in its name. Then build and source tree are hidden by empty file systems, as if they
had been deleted, and the installed program trains on the sample with two ranks, from another folder."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CMAKE, BUILD, SOURCE, VERSION = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve(), sys.argv[4]
MPIEXEC = os.environ.get("MPIEXEC", "mpirun")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Makes the trees vanish for one command and its children. A user who is not root becomes it in a name space of its own.
HIDE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-euc"]
HIDING_SCRIPT = 'for tree in "$1" "$2"; do mount -t tmpfs none "$tree"; done; cd "$3"; shift 3; exec "$@"'


def install(prefix: Path, **environment: str) -> None:
    command = [CMAKE, "--install", str(BUILD), "--prefix", str(prefix)]
    ended = subprocess.run(command, env=os.environ | environment, text=True, capture_output=True)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = Path(tempfile.mkdtemp(prefix="holdfast-install-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.prefix = folder / "my programs"
        cls.work = folder / "work"
        cls.work.mkdir()
        install(cls.prefix)
        cls.program = cls.prefix / "bin/holdfast"
        cls.hides = subprocess.run([*HIDE, "mount -t tmpfs none /mnt"], capture_output=True).returncode == 0

    def run_hidden(self, *command, code: int = 0) -> str:
        if not self.hides:
            self.skipTest("may not make a mount name space, so the build tree cannot be hidden")
        environment = AS_ROOT | {"PATH": os.environ["PATH"], "HOME": str(self.work)}
        ended = subprocess.run(
            [*HIDE, HIDING_SCRIPT, "sh", BUILD, SOURCE, self.work, *command], env=environment, text=True, capture_output=True
        )
        self.assertEqual(ended.returncode, code, f"{command}: {ended.stdout}{ended.stderr}")
        return ended.stdout

    def test_files(self):
        got = files_below(self.prefix)
        guides = {f"share/doc/holdfast/{path.relative_to(SOURCE)}" for path in SOURCE.glob("docs/**/*") if path.is_file()}
        pages = {f"share/man/man1/{path.name}" for path in SOURCE.glob("man/*.1")}
        jobs = {f"share/holdfast/jobs/{path.name}" for path in SOURCE.glob("jobs/*") if path.is_file()}
        self.assertGreaterEqual(min(len(guides), len(pages)), 6)
        wanted = guides | pages | jobs | {
            "bin/holdfast",
            "share/bash-completion/completions/holdfast",
            "share/zsh/site-functions/_holdfast",
            f"share/modulefiles/holdfast/{VERSION}",
            "share/doc/holdfast/README.md",
            "share/doc/holdfast/CHANGELOG.md",
            *(f"share/holdfast/{name}" for name in ("cifar10-sample.h5", "LICENSE", "python/holdfast_io.py", "scripts/fetch-cifar10")),
        }
        self.assertEqual(wanted - got, set(), "missing")
        self.assertEqual(got - wanted, {"share/holdfast/cifar10-sample.md"}, "too many")
        for name in ("bin/holdfast", "share/holdfast/python/holdfast_io.py", "share/holdfast/scripts/fetch-cifar10", *jobs):
            if (self.prefix / name).read_bytes()[:2] in (b"#!", b"\x7fE"):
                self.assertTrue(os.access(self.prefix / name, os.X_OK), f"{name} cannot be run")

    def test_nothing_needs_the_build_tree(self):
        libraries = self.run_hidden("ldd", self.program)
        self.assertNotIn("not found", libraries)
        self.assertRegex(libraries, r"libtorch_cpu\.so => /")
        # LibTorch's headers put their own paths into messages; those of the program are not opened.
        self.assertNotIn(str(BUILD), subprocess.run(["readelf", "-d", self.program], capture_output=True, text=True).stdout)
        for path in self.prefix.rglob("*"):
            if path.is_file() and path != self.program:
                self.assertFalse(str(BUILD).encode() in path.read_bytes(), path)

    def test_starts_with_an_empty_environment(self):
        self.assertEqual(self.run_hidden("env", "-i", self.program, "--version"), f"holdfast {VERSION}\n")

    def test_says_where_things_lie(self):
        info = json.loads(self.run_hidden(self.program, "info", "--json"))
        self.assertEqual(info["program"], str(self.program))
        self.assertEqual(info["sample"], str(self.prefix / "share/holdfast/cifar10-sample.h5"))
        cache = (BUILD / "CMakeCache.txt").read_text()
        torch = Path(re.search(r"(?m)^HOLDFAST_TORCH_ROOT:PATH=(.*)$", cache)[1])
        self.assertEqual(Path(info["libtorch_file"]).resolve().name, "libtorch_cpu.so")
        self.assertTrue(Path(info["libtorch_file"]).resolve().is_relative_to(torch.resolve()), info["libtorch_file"])

    def test_trains_on_the_sample_and_evaluates(self):
        run = self.work / "my run"
        train = [MPIEXEC, "-np", "2", "--oversubscribe", "--bind-to", "none", self.program, "train"]
        settings = ["--model", "resnet18", "--width", "4", "--batch-size", "8", "--threads", "1", "--device", "cpu"]
        text = self.run_hidden(*train, *settings, "--max-steps", "3", "--limit-train", "100", "--limit-test", "40", "--run", run)
        self.assertIn("Finished. Parameters digest", text)
        self.assertIn(f"{self.prefix}/share/holdfast/cifar10-sample.h5", text)
        self.assertIn("accuracy", self.run_hidden(self.program, "eval", run, "--json"))
        self.run_hidden(self.program, "verify", run)

    def test_moved_as_a_whole(self):
        """The program finds its sample beside itself, so the tree may be moved (not LibTorch, which stays where it is)."""
        moved = self.prefix.parent / "moved"
        shutil.copytree(self.prefix, moved)
        info = json.loads(self.run_hidden(moved / "bin/holdfast", "info", "--json"))
        self.assertEqual(info["sample"], str(moved / "share/holdfast/cifar10-sample.h5"))

    def test_manual_is_found(self):
        man = next((name for name in ("man.REAL", "man") if shutil.which(name)), None)
        if not man:
            self.skipTest("no man (man-db) here")
        environment = {"PATH": f"{self.prefix}/bin:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        for names in (["holdfast"], ["holdfast", "train"], ["holdfast-verify"]):
            ended = subprocess.run([man, *names], env=environment, text=True, capture_output=True)
            self.assertEqual(ended.returncode, 0, f"{names}: {ended.stderr}")
            self.assertIn("-".join(names).upper() + "(1)", re.sub(r".\x08", "", ended.stdout))

    def test_completion_is_found(self):
        """As bash-completion does it: by the program's name, in a folder of completions."""
        script = 'source "$1/share/bash-completion/completions/holdfast" && complete -p holdfast'
        ended = subprocess.run(["bash", "-c", script, "bash", self.prefix], text=True, capture_output=True)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertIn("-F _holdfast", ended.stdout)

    def test_missing_libtorch(self):
        """What docs/troubleshooting.md explains: the loader's message, which names the library."""
        torch = Path(json.loads(self.run_hidden(self.program, "info", "--json"))["libtorch_file"]).parent
        environment = {"PATH": os.environ["PATH"]}
        hide = 'mount -t tmpfs none "$1"; shift; exec "$@"'
        ended = subprocess.run([*HIDE, hide, "sh", torch, self.program, "--version"], env=environment, text=True, capture_output=True)
        self.assertEqual(ended.returncode, 127)
        self.assertRegex(ended.stderr, r"error while loading shared libraries: lib(torch_cpu|c10)\.so")

    def test_destdir(self):
        """For packages: staged below DESTDIR, and the prefix is what the modulefile names."""
        with tempfile.TemporaryDirectory(prefix="holdfast-destdir-") as folder:
            install(Path("/opt/holdfast"), DESTDIR=folder)
            self.assertEqual(files_below(Path(folder) / "opt/holdfast"), files_below(self.prefix))
            modulefile = (Path(folder) / f"opt/holdfast/share/modulefiles/holdfast/{VERSION}").read_text()
            self.assertIn("set root {/opt/holdfast}\n", modulefile)
            self.assertNotIn(folder, modulefile)


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
