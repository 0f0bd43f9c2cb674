// SPDX-License-Identifier: Apache-2.0
#include "commands/settings_flags.hpp"

#include <algorithm>
#include <string>

#include <CLI/CLI.hpp>

namespace holdfast::commands {

void add_model_flags(CLI::App& command, train::Settings& settings) {
    command.add_option("--batch-size", settings.batch_size, "Samples per replica and step")
        ->capture_default_str();
    command.add_option("--replicas", settings.replicas,
                       "Replicas of the run, at least the ranks (default: ranks of the first launch)");
    command.add_option("--seed", settings.seed, "Seed of first weights and sample order")
        ->capture_default_str();
    command.add_option("--device", settings.device, "auto, cpu or cuda")
        ->type_name("auto|cpu|cuda")
        ->capture_default_str();
    command.add_option("--threads", settings.threads,
                       "OpenMP threads per replica (default: cores / replicas of a host)");
    command.add_option("--lr", settings.lr, "Learning rate")->capture_default_str();
    command.add_option("--momentum", settings.momentum, "Momentum of SGD")->capture_default_str();
    command.add_option("--model", settings.model, "resnet18 or resnet34")
        ->type_name("resnet18|resnet34")
        ->capture_default_str();
    command.add_option("--width", settings.width, "Channels of the first stage (64: torchvision's)")
        ->capture_default_str();
    command
        .add_option("--reduction", settings.reduction,
                    "exact: same bits on any number of ranks; fast: GPUs only")
        ->type_name("exact|fast")
        ->capture_default_str();
    command
        .add_option("--precision", settings.precision,
                    "What convolutions multiply: fp32, tf32 or bf16 (GPUs only)")
        ->type_name("fp32|tf32|bf16")
        ->capture_default_str();
}

void add_cuda_graph_flag(CLI::App& command, train::CudaGraphs& graphs) {
    auto const& names = train::cuda_graphs_names;
    command
        .add_option_function<std::string>(
            "--cuda-graph",
            [&](std::string const& name) {
                graphs = static_cast<train::CudaGraphs>(std::find(names.begin(), names.end(), name) -
                                                        names.begin());
            },
            "Record forward and backward once and replay them: auto, on or off (GPUs; the same result)")
        ->default_str("auto")
        ->check(CLI::IsMember({"auto", "on", "off"}));
}

}  // namespace holdfast::commands
