// SPDX-License-Identifier: Apache-2.0
// What both implementations say when the device's memory is full.
#pragma once

#include <cstddef>

#include "core/error.hpp"

namespace holdfast::cuda {

struct MemoryInfo {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
};

[[noreturn]] inline void fail_out_of_memory(std::size_t needed_bytes, MemoryInfo const& there) {
    constexpr double gb = 1e9;
    fail(ExitCode::do_not_requeue,
         "the GPU has no room for {:.3f} GB more: {:.3f} of its {:.3f} GB are free (its share of the "
         "gradients, the "
         "state and the batches lie there); lower --batch-size (with more --replicas the global batch stays) "
         "or "
         "--width, start more ranks on more GPUs, or see in nvidia-smi who else uses this one",
         static_cast<double>(needed_bytes) / gb, static_cast<double>(there.free_bytes) / gb,
         static_cast<double>(there.total_bytes) / gb);
}

}  // namespace holdfast::cuda
