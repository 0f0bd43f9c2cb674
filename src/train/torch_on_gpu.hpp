// SPDX-License-Identifier: Apache-2.0
// The part of LibTorch that computes on GPUs. It is not linked but loaded when a launch has a GPU, so that a run on CPUs does
// not pay for it at its start (docs/decisions/010-loading-cuda.md).
#pragma once

#include <filesystem>
#include <string>

#include "parallel/gradient_exchange.hpp"
#include "train/compute_device.hpp"

namespace holdfast::train {

/// Loads it, says how it shall compute, and tries it on the GPU. Before any other use of LibTorch on a GPU, after
/// cuda::use_device. exact: the same bits each time (deterministic algorithms, none chosen by timing); fast: whatever is
/// fastest here. TF32 only by `precision`. Throws Error(do_not_requeue) if the GPU cannot be used.
void start_torch_on_gpu(int gpu, parallel::Reduction reduction, Precision precision);

/// Exact mode: throws Error(do_not_requeue) if LibTorch ever found the memory of `gpu` too small. It then goes on, where it can, with
/// an algorithm of cuDNN that needs less, whose bits are others (ATen/native/cudnn/Conv_v8.cpp), and says nothing.
void require_memory_was_enough(int gpu);

/// Of the libtorch_cpu.so that is in use. libtorch_cuda.so lies beside it. Throws Error(internal_error) if it has no file.
std::filesystem::path torch_library_folder();

/// Of the cuDNN that is loaded, "9.26.0"; after start_torch_on_gpu.
std::string cudnn_version();

}  // namespace holdfast::train
