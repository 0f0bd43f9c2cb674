// SPDX-License-Identifier: Apache-2.0
// The device that each rank of a launch computes on: chosen from the flag and from what all ranks see, and made ready.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.hpp"
#include "parallel/device_assignment.hpp"
#include "parallel/launch_table.hpp"
#include "train/compute_device.hpp"
#include "train/settings.hpp"

namespace holdfast::commands {

struct LaunchDevice {
    std::string description = "cpu";       ///< for the launch table: "GPU 3 (NVIDIA H200)"
    std::unique_ptr<cuda::Stream> stream;  ///< null on CPUs
    train::ComputeDevice compute;
};

struct RankView {
    int host = 0;
    parallel::GpuView gpus;
};

/// Collective. What every rank sees, by rank.
std::vector<RankView> collective_gpu_views(parallel::Communicator const& world);

/// Collective. "cpu" or "cuda" for --device `wanted`. auto: GPUs if every rank sees one; throws on all ranks where falling back
/// to CPUs could be a mistake.
std::string collective_resolve_device(parallel::Communicator const& world, std::string const& wanted);

/// Collective. settings.device is "cpu" or "cuda". Throws on all ranks, with what to type, if a rank finds no GPU of its own, if
/// its LibTorch or NCCL is not the right one, or if what is asked for only GPUs can.
LaunchDevice collective_start_device(parallel::Communicator const& world, train::Settings const& settings,
                                     train::CudaGraphs graphs = train::CudaGraphs::automatic);

/// The default of --threads on that device.
std::int64_t default_threads(train::Settings const& settings, parallel::LaunchTable const& table);

}  // namespace holdfast::commands
