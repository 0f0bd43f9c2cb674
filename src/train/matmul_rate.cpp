// SPDX-License-Identifier: Apache-2.0
#include "train/matmul_rate.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include "core/seconds_since.hpp"

namespace holdfast::train {
namespace {

// Large enough that the arithmetic is all that counts: 1.4 ms on an H200 (at 788 TFLOP/s), 20 to 40 ms on a core.
constexpr std::int64_t gpu_size = 8192;
constexpr std::int64_t cpu_size = 1024;
constexpr int num_warm_up = 3;
constexpr int num_timed = 10;

/// Values in [-1, 1] that differ: with equal ones a GPU needs less power, and gets faster. No generator is touched.
at::Tensor square_matrix(std::int64_t size, at::ScalarType type, at::Device device) {
    at::TensorOptions const options = at::TensorOptions(at::kFloat).device(device);
    return at::arange(size * size, options).remainder_(251).sub_(125).div_(125).view({size, size}).to(type);
}

double fastest_s(at::Tensor const& a, at::Tensor const& b) {
    at::Tensor product = at::empty(a.sizes(), a.options());
    double fastest = std::numeric_limits<double>::max();
    for (int i = 0; i < num_warm_up + num_timed; ++i) {
        auto const start = std::chrono::steady_clock::now();
        at::matmul_out(product, a, b);
        if (a.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(a.device().index());
        if (i >= num_warm_up) fastest = std::min(fastest, seconds_since(start));
    }
    return fastest;
}

}  // namespace

MatmulRate measure_matmul_rate(ReplicaSlots& slots, ComputeDevice device) {
    bool const on_gpu = device.gpu >= 0;
    at::Device const where =
        on_gpu ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device.gpu)) : at::Device(at::kCPU);
    std::int64_t const size = on_gpu ? gpu_size : cpu_size;
    at::ScalarType const type = on_gpu ? at::kBFloat16 : at::kFloat;
    double const flop =
        2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
    std::vector<double> rates(static_cast<std::size_t>(slots.size()));
    for (int slot = 0; slot < slots.size(); ++slot)
        slots.start(slot, [&rate = rates[static_cast<std::size_t>(slot)], size, type, where, flop](Replica&) {
            rate = flop / fastest_s(square_matrix(size, type, where), square_matrix(size, type, where).t());
        });
    slots.wait();
    return {on_gpu ? "bf16" : "fp32", size, std::accumulate(rates.begin(), rates.end(), 0.0)};
}

}  // namespace holdfast::train
