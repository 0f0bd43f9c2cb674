// SPDX-License-Identifier: Apache-2.0
// The flags of a run's settings, shared by the commands that compute.
#pragma once

#include "train/compute_device.hpp"
#include "train/settings.hpp"

namespace CLI {
class App;
}

namespace holdfast::commands {

/// Recipe, network, replicas, threads, optimizer: what train, bench and doctor have in common.
void add_model_flags(CLI::App& command, train::Settings& settings);

/// Not of the run: --cuda-graph changes no result.
void add_cuda_graph_flag(CLI::App& command, train::CudaGraphs& graphs);

/// After parsing: what was not given explicitly becomes the recipe's, in `settings` and as the default that config_text shows.
void apply_recipe(CLI::App& command, train::Settings& settings);

}  // namespace holdfast::commands
