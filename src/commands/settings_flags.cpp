// SPDX-License-Identifier: Apache-2.0
#include "commands/settings_flags.hpp"

#include <algorithm>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "commands/command_line.hpp"

namespace holdfast::commands {

void add_model_flags(CLI::App& command, train::Settings& settings) {
    command.add_option("--recipe", settings.recipe, "Defaults of the other flags (docs/recipes.md)")
        ->type_name("tutorial|strong")
        ->capture_default_str();
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
    command
        .add_option("--augment", settings.augment,
                    "Training images: as they are, or cropped (padding 4) and mirrored at random")
        ->type_name("none|crop-flip")
        ->capture_default_str();
    command
        .add_option("--label-smoothing", settings.label_smoothing,
                    "Share of the training labels that is spread over all classes")
        ->capture_default_str();
    command.add_option("--lr", settings.lr, "Learning rate, the highest of the schedule")
        ->capture_default_str();
    command.add_option("--momentum", settings.momentum, "Momentum of SGD")->capture_default_str();
    command.add_option("--nesterov", settings.nesterov, "Nesterov's momentum")
        ->type_name("true|false")
        ->default_str("false");
    command
        .add_option("--weight-decay", settings.weight_decay,
                    "Weight decay of all parameters but BatchNorm's and biases")
        ->capture_default_str();
    command
        .add_option(
            "--ema-decay", settings.ema_decay,
            "Evaluate with a moving average of the weights over the steps, of this decay (0: without)")
        ->capture_default_str();
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

void apply_recipe(CLI::App& command, train::Settings& settings) {
    train::Settings const parsed = settings;
    settings = train::with_recipe(parsed, explicitly_given(command));
    train::for_each_setting(settings, [&](std::string const& name, train::SettingKind, auto const& value) {
        CLI::Option* const option = command.get_option_no_throw("--" + name);
        if (option != nullptr && !train::differences(parsed, settings, {name}).empty())
            option->default_str(fmt::format("{}", value));
    });
}

}  // namespace holdfast::commands
