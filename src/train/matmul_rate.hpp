// SPDX-License-Identifier: Apache-2.0
// How fast this machine multiplies matrices: what the arithmetic of a training step is compared with (MFU, model FLOPs
// utilization; source: Chowdhery et al. 2022, PaLM, appendix B), because data sheets promise what no program reaches.
#pragma once

#include <cstdint>

#include "train/compute_device.hpp"
#include "train/replica_slots.hpp"

namespace holdfast::train {

struct MatmulRate {
    char const* precision = "";
    std::int64_t size = 0;  ///< of the square matrices
    double flop_per_s = 0;  ///< of this rank, all its slots together
};

/// On a GPU in bf16 with fp32 sums, on CPUs in fp32, each slot with its threads and all at the same time; the fastest of several.
MatmulRate measure_matmul_rate(ReplicaSlots& slots, ComputeDevice device);

}  // namespace holdfast::train
