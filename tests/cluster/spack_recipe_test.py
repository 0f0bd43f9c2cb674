#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: spack_recipe_test.py SOURCE_DIR CMAKE_CACHE

Runs the Spack recipe against stand-ins for Spack that know only names of its package API (v2.2), and compares what it says
with CMake: every -D must be a variable that CMake knows, versions and options must agree. Spack itself is not needed."""
import pathlib
import re
import sys
import types
import unittest

SOURCE, CACHE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
RECIPE = SOURCE / "spack_repo/holdfast/packages/holdfast/package.py"
calls = []


def directive(name):
    def record(*args, **kwargs):
        calls.append((name, args, kwargs))
    return record


class CMakePackage:
    run_tests = False

    def define(self, name, value):
        return f"-D{name}={value}"

    def define_from_variant(self, name, variant):
        return f"-D{name}={self.spec.satisfies('+' + variant)}"

    def __getitem__(self, name):
        assert name == "py-torch"
        return types.SimpleNamespace(cmake_prefix_paths=["/site-packages/torch/share/cmake"])


class CudaPackage:
    cuda_arch_values = ("80", "90")


class Spec(dict):
    def __init__(self, cuda):
        super().__init__(nccl=types.SimpleNamespace(prefix="/nccl"))
        self.cuda = cuda
        self.variants = {"cuda_arch": types.SimpleNamespace(value=("80",))}

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
    directives = ("version", "license", "depends_on", "conflicts", "requires", "variant", "patch", "maintainers")
    module("spack.package", **{name: directive(name) for name in directives})
    names = {"__file__": str(RECIPE)}
    exec(compile(RECIPE.read_text(), str(RECIPE), "exec"), names)  # a name outside the API is a NameError here
    return names["Holdfast"]


class Recipe(unittest.TestCase):
    def test_every_definition_is_known_to_cmake(self):
        known = set(re.findall(r"^([A-Za-z0-9_]+):", CACHE.read_text(), re.M))
        for file in [SOURCE / "CMakeLists.txt", *SOURCE.glob("cmake/*.cmake")]:
            text = file.read_text()
            known |= set(re.findall(r"set\((\w+) [^)]*\bCACHE\b", text)) | set(re.findall(r"option\((\w+)", text))
        for cuda in (False, True):
            package = Holdfast()
            package.spec = Spec(cuda)
            arguments = package.cmake_args()
            self.assertIn(f"-DHOLDFAST_WITH_CUDA={cuda}", arguments)
            self.assertIn("-DHOLDFAST_TORCH_ROOT=/site-packages/torch", arguments)
            for argument in arguments:
                self.assertIn(re.fullmatch(r"-D(\w+)=.*", argument).group(1), known)

    def test_versions_agree(self):
        project = re.search(r"project\(holdfast VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
        self.assertIn(project, [args[0] for name, args, _ in calls if name == "version"])
        minimum = re.search(r"cmake_minimum_required\(VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
        self.assertIn(f"cmake@{minimum}:", [args[0] for name, args, _ in calls if name == "depends_on"])

    def test_gpu_architecture_reaches_torch_and_nccl(self):
        depends = {(args[0], kwargs.get("when")) for name, args, kwargs in calls if name == "depends_on"}
        for arch in CudaPackage.cuda_arch_values:
            for package in ("py-torch", "nccl"):
                self.assertIn((f"{package} cuda_arch={arch}", f"+cuda cuda_arch={arch}"), depends)

    def test_what_spack_audit_refuses(self):
        text = RECIPE.read_text()
        self.assertTrue(Holdfast.__doc__)
        for word in ("FIXME", "example.com"):
            self.assertNotIn(word, text)

    def test_repository(self):
        self.assertEqual(Holdfast.git, SOURCE.resolve().as_uri())
        self.assertRegex((SOURCE / "spack_repo/holdfast/repo.yaml").read_text(), r"namespace: holdfast\n\s+api: v2\.2\n")
        self.assertEqual((SOURCE / "package.py").resolve(), RECIPE.resolve())


Holdfast = load_recipe()
unittest.main(argv=sys.argv[:1])
