// SPDX-License-Identifier: Apache-2.0
// Marks for NVIDIA's profilers (Nsight Systems and others that understand NVTX): named ranges of the host's threads, and the part
// of a launch that `nsys profile --capture-range=cudaProfilerApi` records. While no profiler is attached they cost a few
// nanoseconds; in builds without CUDA there is nothing behind them.
#pragma once

#include <cstdint>

namespace holdfast::cuda {

/// This thread is in `name`, inside the ranges it is in already, until it calls end_range. `number` goes with it as payload.
void begin_range(char const* name, std::int64_t number);
void end_range();

/// Of the GPU in use (use_device). Without a profiler they do nothing.
void start_profiler();
void stop_profiler();

}  // namespace holdfast::cuda
