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
    version("0.1.0", tag="v0.1.0")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    generator("ninja")

    depends_on("mpi")
    depends_on("hdf5@1.10:")
    depends_on("py-torch@2.8:2.15 ~cuda", when="~cuda")
    depends_on("py-torch@2.8:2.15 +cuda +nccl", when="+cuda")
    depends_on("nccl", when="+cuda")
    depends_on("cli11@2.1:")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10: +fmt_external")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash@0.8:")
    depends_on("libjpeg-turbo@2:")

    # Device code of one GPU model is of no use to another: torch and NCCL must be built for the same ones.
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"py-torch cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
        depends_on(f"nccl cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    conflicts("cuda_arch=none", when="+cuda", msg="name the GPU: cuda_arch=80 (A100), 90 (H100, H200), ...")

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
