// SPDX-License-Identifier: Apache-2.0
// Where the replicas of a rank compute, where their gradients and the state they read lie, and in which numbers and order.
#pragma once

#include <array>
#include <string_view>

#include "cuda/device_runtime.hpp"

namespace holdfast::train {

/// What convolutions and the linear layer multiply. Everything else, and what is kept between steps, is float32.
enum class Precision {
    fp32,
    tf32,  ///< float32 rounded to 10 bits of mantissa in the GPU's matrix units; on a CPU fp32
    bf16,
};
inline constexpr std::array<std::string_view, 3> precision_names{"fp32", "tf32", "bf16"};

/// Order in memory of images and of the weights of convolutions.
enum class Layout {
    nchw,
    nhwc,  ///< "channels last": what a GPU's matrix units read without reordering
};

/// Whether forward and backward are recorded as CUDA graphs and replayed. The bits are the same.
enum class CudaGraphs {
    off,
    automatic,  ///< where that works
    on,         ///< or not at all
};
inline constexpr std::array<std::string_view, 3> cuda_graphs_names{"off", "auto", "on"};

/// By default the CPU, in memory that the ranks of a host share.
struct ComputeDevice {
    /// Device memory and the order of the work on it; null: host memory. Must outlive what computes.
    cuda::Stream const* stream = nullptr;
    /// LibTorch's number of the GPU. -1: LibTorch computes on the CPU; with a stream, that is the device path on the host
    /// implementation of the device runtime, for tests without a GPU.
    int gpu = -1;
    Precision precision = Precision::fp32;
    Layout layout = Layout::nchw;  ///< in device memory; host memory is always nchw
    CudaGraphs graphs = CudaGraphs::off;

    bool has_device_memory() const { return stream != nullptr; }
};

}  // namespace holdfast::train
