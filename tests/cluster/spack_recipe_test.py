#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: spack_recipe_test.py SOURCE_DIR BUILD_DIR CMAKE

Runs the Spack recipe against stand-ins for Spack that know only the names of its package API (spack_package_api.txt), and
compares what it says with CMake: versions, options and definitions agree, and a real CMake accepts them. The recipe's own tests
run on a staged installation. Spack itself is not needed; spack_real_test.bash uses one."""
import ast
import builtins
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

SOURCE, BUILD, CMAKE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3]
RECIPE = SOURCE / "spack_repo/holdfast/packages/holdfast/package.py"
API = set(" ".join(line for line in (SOURCE / "tests/cluster/spack_package_api.txt").read_text().splitlines() if line[0] != "#").split())
DIRECTIVES = ("version", "license", "depends_on", "conflicts", "requires", "variant", "patch", "maintainers", "provides")
# Global in a recipe's methods because the package cmake, a build dependency, puts it there.
FROM_CMAKE_PACKAGE = {"ctest"}
calls = []

# Where CMake looks for a package of Spack under another name. None: not from Spack, but the compiler's or the C library's.
SPACK_NAME = {"CLI11": "cli11", "GTest": "googletest", "HDF5": "hdf5", "JPEG": "libjpeg-turbo", "MPI": "mpi", "Python3": "python",
              "Threads": None, "XXHASH_INCLUDE_DIR": "xxhash", "nlohmann_json": "nlohmann-json", "CUDAToolkit": "cuda"}
# Minimum versions that CMake cannot ask for: find_path knows none.
MINIMUM_NOT_IN_CMAKE = {"xxhash": "0.8"}  # where XXH3, which checkpoints are digested with, became final
# No choice of a site that installs Holdfast.
FOR_DEVELOPERS = {"HOLDFAST_FUZZERS", "HOLDFAST_WARNINGS_AS_ERRORS"}
VARIANT_OF_OPTION = {"HOLDFAST_WITH_CUDA": "cuda"}


def directive(name):
    def record(*args, **kwargs):
        calls.append((name, args, kwargs))
    return record


class Prefix(str):
    """As Spack's: prefix.bin.holdfast is a path."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Prefix(os.path.join(self, name))


class Executable:
    def __init__(self, path):
        self.path = path

    def __call__(self, *args, output=None, error=None, extra_env=None):
        environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | (extra_env or {})
        ended = subprocess.run([self.path, *args], env=environment, text=True, capture_output=True)
        if ended.returncode != 0:
            raise ProcessError(f"{self.path} {args}: {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return ended.stdout + ended.stderr if output is str.split and error is str.split else None


class ProcessError(Exception):
    pass


class SkipTest(Exception):
    pass


class CMakePackage:
    """`define` writes what spack_repo.builtin.build_systems.cmake of 2026-07 writes."""

    run_tests = False
    build_directory = str(BUILD)

    def define(self, name, value):
        if isinstance(value, bool):
            return f"-D{name}:BOOL={'ON' if value else 'OFF'}"
        return f"-D{name}:STRING={value if isinstance(value, str) else ';'.join(value)}"

    def define_from_variant(self, name, variant):
        return self.define(name, self.spec.satisfies("+" + variant))

    def __getitem__(self, name):
        assert name == "py-torch"
        return types.SimpleNamespace(cmake_prefix_paths=["/site-packages/torch/share/cmake"])


class CudaPackage:
    cuda_arch_values = ("80", "90")


class Spec(dict):
    def __init__(self, cuda=False, mpi="/mpi"):
        super().__init__(nccl=types.SimpleNamespace(prefix="/nccl"), mpi=types.SimpleNamespace(prefix=Prefix(mpi)))
        self.cuda = cuda
        self.variants = {"cuda_arch": types.SimpleNamespace(value=("80", "90"))}

    def satisfies(self, text):
        return {"+cuda": self.cuda, "~cuda": not self.cuda}[text]


def module(name, **contents):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(contents)


def load_recipe():
    for name in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        module(name)
    module("spack_repo.builtin.build_systems.cmake", CMakePackage=CMakePackage, generator=directive("generator"))
    module("spack_repo.builtin.build_systems.cuda", CudaPackage=CudaPackage)
    stand_ins = {name: directive(name) for name in DIRECTIVES}
    stand_ins |= {"join_path": os.path.join, "which": lambda path: Executable(path) if os.access(path, os.X_OK) else None}
    stand_ins |= {"working_dir": contextlib.chdir, "Executable": Executable, "SkipTest": SkipTest, "ProcessError": ProcessError}
    assert set(stand_ins) <= API
    module("spack.package", **stand_ins)
    names = {"__file__": str(RECIPE)}
    exec(compile(RECIPE.read_text(), str(RECIPE), "exec"), names)
    return names


def package(**spec):
    made = NAMES["Holdfast"]()
    made.spec = Spec(**spec)
    return made


def dependencies() -> dict[str, str]:
    """Name to the version range, from all depends_on."""
    found = {}
    for name, args, _ in calls:
        if name == "depends_on":
            parsed = re.match(r"([\w-]+)(?:@([\w.:]+))?", args[0])
            found.setdefault(parsed[1], parsed[2] or "")
    return found


def cmake_files() -> list[Path]:
    return [SOURCE / "CMakeLists.txt", *SOURCE.glob("cmake/*.cmake"), SOURCE / "tests/CMakeLists.txt"]


def cmake_requirements() -> dict[str, str]:
    """What CMake looks for, under Spack's name, and the minimum version."""
    found = {}
    for file in cmake_files():
        for name, version in re.findall(r"find_package\((\w+)(?: ([\d.]+))?[ )]", file.read_text()):
            found[SPACK_NAME.get(name, name)] = version
        for name in re.findall(r"find_path\(([A-Z]\w+) ", file.read_text()):
            found[SPACK_NAME[name]] = ""
    found.pop(None, None)
    return found


class Names(unittest.TestCase):
    def test_only_names_of_the_api(self):
        tree = ast.parse(RECIPE.read_text())
        bound = {"__file__", *dir(builtins), *FROM_CMAKE_PACKAGE}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                bound.add(node.name)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        self.assertGreaterEqual(len(used & API), 5)
        self.assertEqual(used - bound - API, set())

    def test_imports(self):
        modules = set(re.findall(r"(?m)^(?:from|import) ([\w.]+)", RECIPE.read_text()))
        self.assertEqual({name for name in modules if name.startswith("spack")},
                         {"spack.package", "spack_repo.builtin.build_systems.cmake", "spack_repo.builtin.build_systems.cuda"})

    def test_what_spack_audit_refuses(self):
        text = RECIPE.read_text()
        self.assertTrue(NAMES["Holdfast"].__doc__)
        for word in ("FIXME", "example.com"):
            self.assertNotIn(word, text)
        for name, method in vars(NAMES["Holdfast"]).items():
            if name.startswith("test_"):
                self.assertTrue(method.__doc__, f"{name}: its docstring is what Spack prints")

    def test_repository(self):
        self.assertEqual(NAMES["Holdfast"].git, SOURCE.as_uri())
        self.assertRegex((SOURCE / "spack_repo/holdfast/repo.yaml").read_text(), r"namespace: holdfast\n\s+api: v2\.2\n")
        self.assertTrue((SOURCE / "package.py").is_symlink())
        self.assertEqual((SOURCE / "package.py").resolve(), RECIPE)


class AgreesWithCMake(unittest.TestCase):
    def test_what_is_looked_for(self):
        ours = set(dependencies()) - {"c", "cxx", "cmake", "openmpi"}
        cmakes = set(cmake_requirements()) | {"py-torch", "nccl"}
        self.assertEqual(ours, cmakes - {"cuda"}, "cuda comes with CudaPackage")

    def test_minimum_versions(self):
        ours, cmakes = dependencies(), cmake_requirements() | MINIMUM_NOT_IN_CMAKE
        self.assertGreaterEqual(len([version for version in cmakes.values() if version]), 6)
        for name, version in cmakes.items():
            if name != "cuda":
                self.assertEqual(ours[name], f"{version}:" if version else "", name)
        minimum = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        self.assertEqual(ours["cmake"], f"{minimum}:")
        torch = (SOURCE / "cmake/HoldfastTorch.cmake").read_text()
        oldest = re.search(r"HOLDFAST_TORCH_VERSION VERSION_LESS ([\d.]+)", torch)[1]
        newest = re.search(rf"tested with {re.escape(oldest)} to ([\d.]+)\)", torch)[1]
        self.assertEqual(ours["py-torch"], f"{oldest}:{newest}")

    def test_versions_are_there(self):
        """A release is offered where the repository has its tag: without it the source could not be fetched."""
        versions = {args[0]: kwargs for name, args, kwargs in calls if name == "version"}
        self.assertEqual(versions.pop("main"), {"branch": "main"})
        for version, source in versions.items():
            self.assertEqual(source, {"tag": f"v{version}"})
        if (SOURCE / ".git").exists() and shutil.which("git"):
            tags = subprocess.run(["git", "-C", SOURCE, "tag"], text=True, capture_output=True, check=True).stdout.split()
            self.assertLessEqual({f"v{version}" for version in versions}, set(tags))
            project = re.search(r"project\(holdfast VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
            self.assertEqual(project in versions, f"v{project}" in tags)

    def test_every_option_is_a_variant(self):
        options = set(re.findall(r"\boption\((\w+)", "".join(file.read_text() for file in cmake_files())))
        self.assertEqual(options, set(VARIANT_OF_OPTION) | {"HOLDFAST_BUILD_TESTS"} | FOR_DEVELOPERS)
        for cuda in (False, True):
            self.assertIn(f"-DHOLDFAST_WITH_CUDA:BOOL={'ON' if cuda else 'OFF'}", package(cuda=cuda).cmake_args())
        tested = package()
        tested.run_tests = True
        self.assertIn("-DHOLDFAST_BUILD_TESTS:BOOL=ON", tested.cmake_args())

    def test_every_definition_is_a_cache_entry(self):
        known = set(re.findall(r"(?m)^([A-Za-z0-9_]+):", (BUILD / "CMakeCache.txt").read_text()))
        # Those of a GPU build are in the cache of one only.
        for file in cmake_files():
            known |= set(re.findall(r"set\((\w+) [^)]*\bCACHE\b", file.read_text()))
        for cuda in (False, True):
            for argument in package(cuda=cuda).cmake_args():
                self.assertIn(re.fullmatch(r"-D(\w+):(?:BOOL|STRING)=.*", argument)[1], known)

    def test_real_cmake_accepts_the_arguments(self):
        """It warns of definitions that nothing reads."""
        torch = re.search(r"(?m)^HOLDFAST_TORCH_ROOT:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text())[1]
        arguments = [argument.replace("/site-packages/torch", torch) for argument in package().cmake_args()]
        with tempfile.TemporaryDirectory(prefix="holdfast-spack-") as folder:
            ended = subprocess.run([CMAKE, "-S", SOURCE, "-B", folder, *arguments], text=True, capture_output=True)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertNotIn("not used by the project", ended.stderr)
            cache = (Path(folder) / "CMakeCache.txt").read_text()
            self.assertIn("HOLDFAST_WITH_CUDA:BOOL=OFF", cache)
            self.assertIn("HOLDFAST_BUILD_TESTS:BOOL=OFF", cache)

    def test_gpu_build(self):
        arguments = package(cuda=True).cmake_args()
        self.assertIn("-DHOLDFAST_TORCH_ROOT:STRING=/site-packages/torch", arguments)
        self.assertIn("-DHOLDFAST_NCCL_ROOT:STRING=/nccl", arguments)
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES:STRING=80;90", arguments)

    def test_gpu_architecture_reaches_torch_and_nccl(self):
        depends = {(args[0], kwargs.get("when")) for name, args, kwargs in calls if name == "depends_on"}
        for arch in CudaPackage.cuda_arch_values:
            for name in ("py-torch", "nccl"):
                self.assertIn((f"{name} cuda_arch={arch}", f"+cuda cuda_arch={arch}"), depends)
        conflicts = [args[0] for name, args, kwargs in calls if name == "conflicts" and kwargs.get("when") == "+cuda"]
        self.assertIn("cuda_arch=none", conflicts)

    def test_check_runs_tests_that_exist(self):
        given = []
        NAMES["ctest"] = lambda *arguments: given.extend(arguments) or self.assertEqual(os.getcwd(), str(BUILD))
        package().check()
        listed = subprocess.run(["ctest", "-N", *given], cwd=BUILD, text=True, capture_output=True, check=True).stdout
        self.assertGreaterEqual(int(re.search(r"Total Tests: (\d+)", listed)[1]), 50, listed)
        self.assertNotIn("end_to_end.", listed)


class OnAStagedInstallation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="holdfast-spack-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        subprocess.run([CMAKE, "--install", BUILD, "--prefix", cls.prefix], check=True, capture_output=True)

    def setUp(self):
        mpiexec = Path(os.environ.get("MPIEXEC") or shutil.which("mpirun") or self.skipTest("no mpirun"))
        self.package = package(mpi=str(mpiexec.parent.parent))
        self.package.prefix = Prefix(self.prefix)

    def run_tests_of_the_recipe(self) -> int:
        names = [name for name in dir(self.package) if name.startswith("test_")]
        for name in names:
            with tempfile.TemporaryDirectory(prefix="holdfast-spack-") as stage, contextlib.chdir(stage):
                getattr(self.package, name)()
        return len(names)

    def test_they_pass(self):
        self.assertGreaterEqual(self.run_tests_of_the_recipe(), 2)
        for path in self.package.sanity_check_is_file:
            self.assertTrue((self.prefix / path).is_file(), path)

    def test_they_can_fail(self):
        sample = self.prefix / "share/holdfast/cifar10-sample.h5"
        sample.rename(self.folder / "sample")
        self.addCleanup(lambda: (self.folder / "sample").rename(sample))
        with self.assertRaises(AssertionError):  # the program falls back on the sample of the source tree
            self.package.test_info()
        broken = self.folder / "broken"
        (broken / "bin").mkdir(parents=True)
        (broken / "bin/holdfast").write_text("#!/bin/sh\nexit 1\n")
        (broken / "bin/holdfast").chmod(0o755)
        self.package.prefix = Prefix(broken)
        for name in ("test_info", "test_train"):
            with self.assertRaises(ProcessError):
                getattr(self.package, name)()

    def test_without_mpirun(self):
        self.package.spec = Spec(mpi="/nonexistent")
        with self.assertRaises(SkipTest):
            self.package.test_train()

    def test_environment(self):
        given = {}
        self.package.setup_run_environment(types.SimpleNamespace(set=given.__setitem__))
        self.assertEqual(given, {"HOLDFAST_ROOT": str(self.prefix)})


NAMES = load_recipe()
result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
