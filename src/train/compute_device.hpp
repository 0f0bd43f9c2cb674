// SPDX-License-Identifier: Apache-2.0
// Where the replicas of a rank compute, and where their gradients and the state they read lie.
#pragma once

#include "cuda/device_runtime.hpp"

namespace holdfast::train {

/// By default the CPU, in memory that the ranks of a host share.
struct ComputeDevice {
    /// Device memory and the order of the work on it; null: host memory. Must outlive what computes.
    cuda::Stream const* stream = nullptr;
    /// LibTorch's number of the GPU. -1: LibTorch computes on the CPU; with a stream, that is the device path on the host
    /// implementation of the device runtime, for tests without a GPU.
    int gpu = -1;

    bool has_device_memory() const { return stream != nullptr; }
};

}  // namespace holdfast::train
