# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Holdfast(CMakePackage, CudaPackage):
    """Trains image classifiers under MPI with bit-identical results on any number of ranks, and checkpoints that survive
    kills, requeues and moves to another number of ranks."""

    # The recipe lies in the source tree and builds the tree it lies in.
    git = pathlib.Path(__file__).resolve().parents[4].as_uri()

    license("Apache-2.0")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    generator("ninja")

    depends_on("mpi")
    depends_on("hdf5@1.10:")
    depends_on("py-torch@2.8:2.15 ~cuda", when="~cuda")
    depends_on("py-torch@2.8:2.15 +cuda +nccl", when="+cuda")
    depends_on("nccl", when="+cuda")
    depends_on("cli11@2.1:")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10:")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash@0.8:")
    depends_on("libjpeg-turbo")
    depends_on("googletest@1.12: +gmock", type="test")
    depends_on("python", type="test")

    # Open MPI for SLURM would come without mpirun, which `holdfast supervise` and the tests below start.
    depends_on("openmpi +legacylaunchers", when="^[virtuals=mpi] openmpi@:4 schedulers=slurm")

    # Device code of one GPU model is of no use to another: torch and NCCL must be built for the same ones.
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"py-torch cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
        depends_on(f"nccl cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    conflicts("cuda_arch=none", when="+cuda", msg="name the GPU: cuda_arch=80 (A100), 90 (H100, H200), ...")

    sanity_check_is_file = [join_path("bin", "holdfast"), join_path("share", "holdfast", "cifar10-sample.h5")]

    def cmake_args(self):
        """One definition for each CMake option a site may want to set."""
        # py-torch names its folder of CMake files, torch/share/cmake; Holdfast wants torch itself.
        torch_cmake = self["py-torch"].cmake_prefix_paths[0]
        args = [
            self.define("HOLDFAST_TORCH_ROOT", os.path.dirname(os.path.dirname(torch_cmake))),
            self.define_from_variant("HOLDFAST_WITH_CUDA", "cuda"),
            self.define("HOLDFAST_BUILD_TESTS", self.run_tests),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("HOLDFAST_NCCL_ROOT", self.spec["nccl"].prefix))
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args

    def setup_run_environment(self, env):
        env.set("HOLDFAST_ROOT", self.prefix)

    def check(self):
        """Tests of single parts, with and without MPI. The whole suite also wants SLURM, Lmod and half an hour."""
        with working_dir(self.build_directory):
            ctest("--output-on-failure", "--label-regex", "^(unit|mpi)$")

    def run_installed(self, *arguments):
        """What the installed program prints. Raises if it fails."""
        return Executable(self.prefix.bin.holdfast)(*arguments, output=str.split, error=str.split)

    def test_info(self):
        """the program starts, and finds its libraries and its sample"""
        text = self.run_installed("info")
        for expected in ("libtorch_cpu.so", join_path("holdfast", "cifar10-sample.h5")):
            assert expected in text, f"'{expected}' is not in {text}"

    def test_train(self):
        """two ranks train on the sample, and the run verifies"""
        mpirun = which(self.spec["mpi"].prefix.bin.mpirun)
        if mpirun is None:
            raise SkipTest("this MPI has no mpirun")
        settings = "--model resnet18 --width 4 --batch-size 8 --threads 1 --device cpu --limit-train 64 --limit-test 32"
        launch = ["-np", "2", self.prefix.bin.holdfast, "train", *settings.split()]
        # Fewer cores than ranks are enough for this (Open MPI 4; 5).
        few_cores = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        mpirun(*launch, "--max-steps", "3", "--run", "spack-test-run", extra_env=few_cores)
        self.run_installed("verify", "spack-test-run")
