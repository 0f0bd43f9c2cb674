// SPDX-License-Identifier: Apache-2.0
// The flags of a run's settings, shared by the commands that compute.
#pragma once

#include "train/compute_device.hpp"
#include "train/settings.hpp"

namespace CLI {
class App;
}

namespace holdfast::commands {

/// Network, replicas, threads, optimizer: what train and bench have in common.
void add_model_flags(CLI::App& command, train::Settings& settings);

/// Not of the run: --cuda-graph changes no result.
void add_cuda_graph_flag(CLI::App& command, train::CudaGraphs& graphs);

}  // namespace holdfast::commands
