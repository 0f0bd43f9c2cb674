// SPDX-License-Identifier: Apache-2.0
#include "train/torch_on_gpu.hpp"

#include <cstdlib>
#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <climits>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
#include <c10/core/CachingDeviceAllocator.h>
#define HOLDFAST_TORCH_COUNTS_SHORTAGES  // not before LibTorch 2.9
#endif

#include "core/error.hpp"

namespace holdfast::train {
namespace {

/// Beside the libtorch_cpu.so that is in use, so that the two are of one build. It registers itself.
void load_libtorch_cuda() {
    std::filesystem::path const path = torch_library_folder() / "libtorch_cuda.so";
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    require(handle != nullptr, ExitCode::do_not_requeue,
            "{} cannot be loaded: {} (LibTorch computes on GPUs by it); build with a LibTorch for CUDA, or "
            "use --device cpu",
            path.string(), handle == nullptr ? dlerror() : "");
}

void set_arithmetic(parallel::Reduction reduction, Precision precision) {
    bool const exact = reduction == parallel::Reduction::exact;
    at::Context& context = at::globalContext();
    context.setAllowTF32CuBLAS(precision == Precision::tf32);
    context.setAllowTF32CuDNN(precision == Precision::tf32);
    context.setBenchmarkCuDNN(!exact);
    context.setDeterministicCuDNN(exact);
    if (!exact) return;
    // Read when the first handle of cuBLAS is made. Source: NVIDIA's documentation of cuBLAS, "Results reproducibility".
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context.setDeterministicFillUninitializedMemory(
        false);  // for debugging, and costs a pass over all memory
}

}  // namespace

std::filesystem::path torch_library_folder() {
    // Not by the address of a function, which in a program that is not position-independent lies in the program itself.
    void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    char folder[PATH_MAX] = {};
    require(library != nullptr && dlinfo(library, RTLD_DI_ORIGIN, folder) == 0, ExitCode::internal_error,
            "libtorch_cpu.so is not among the loaded libraries");
    dlclose(library);
    return folder;
}

void start_torch_on_gpu(int gpu, parallel::Reduction reduction, Precision precision) {
    load_libtorch_cuda();
    set_arithmetic(reduction, precision);
    try {
        at::TensorOptions const options =
            at::TensorOptions(at::kFloat).device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
        float const sum = at::full({64}, 0.5f, options).sum().item<float>();
        require(sum == 32.0f, ExitCode::do_not_requeue,
                "GPU {} adds 64 halves to {} (it or its driver is broken); see nvidia-smi", gpu, sum);
    } catch (c10::Error const& error) {
        fail(ExitCode::do_not_requeue,
             "LibTorch cannot compute on GPU {}: {} (it may be built without code for this GPU, or the "
             "driver may be too old "
             "for its CUDA); use a LibTorch for this GPU, or --device cpu",
             gpu, error.what_without_backtrace());
    }
}

void require_memory_was_enough([[maybe_unused]] int gpu) {
#ifdef HOLDFAST_TORCH_COUNTS_SHORTAGES
    if (!at::globalContext().deterministicCuDNN()) return;
    std::int64_t const num_shortages =
        c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(gpu)).num_ooms;
    require(
        num_shortages == 0, ExitCode::do_not_requeue,
        "the memory of GPU {} was too small for the algorithms that the run is computed with ({} times; "
        "LibTorch took others, and their results differ in the last bits); lower --batch-size (with more "
        "--replicas the global batch stays), end what else uses this GPU, or start a run with --reduction "
        "fast",
        gpu, num_shortages);
#endif
}

std::string cudnn_version() {
    long const version = at::detail::getCUDAHooks().versionCuDNN();
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);  // since cuDNN 9
}

}  // namespace holdfast::train
