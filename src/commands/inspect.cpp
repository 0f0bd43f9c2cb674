// SPDX-License-Identifier: Apache-2.0
// holdfast inspect: what a checkpoint holds, for people and for scripts.
#include <iostream>
#include <memory>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "commands/run_path.hpp"
#include "core/json_text.hpp"

namespace holdfast::commands {
namespace {

nlohmann::ordered_json summary(checkpoint::CheckpointFile const& file) {
    nlohmann::ordered_json const settings = nlohmann::ordered_json::parse(file.text("/settings/json"));
    nlohmann::ordered_json json;
    json["file"] = file.name();
    json["epoch"] = file.integer("/progress/epoch");
    json["step"] = file.integer(checkpoint::step_path);
    json["steps_per_epoch"] = file.integer("/progress/steps_per_epoch");
    json["replicas"] = settings.at("replicas");
    json["batch_size"] = settings.at("batch-size");
    json["seed"] = settings.at("seed");
    json["evaluates"] = file.has("/ema/conv1.weight") ? "moving averages" : "parameters";
    json["parameters_digest"] = file.parameters_digest().hex();
    json["state_digest"] = file.state_digest().hex();
    json["file_digest"] = file.file_digest().hex();
    json["settings"] = settings;
    json["fingerprint"] = nlohmann::ordered_json::parse(file.text("/fingerprint/json"));
    std::int64_t num_parameters = 0;
    for (hdf5::DatasetInfo const& info : file.datasets())
        if (info.path.starts_with("/model/")) {
            json["parameters"].push_back(
                {{"name", info.path.substr(std::string_view("/model/").size())}, {"shape", info.shape}});
            num_parameters += static_cast<std::int64_t>(info.num_elements());
        }
    json["num_parameters"] = num_parameters;
    return json;
}

void print(nlohmann::ordered_json const& json) {
    for (auto const& [key, value] : json.items())
        if (key != "parameters" && key != "settings")
            fmt::print("{:<18} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    fmt::print("settings\n");
    for (auto const& [key, value] : json["settings"].items())
        fmt::print("  {:<16} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    fmt::print("parameters\n");
    for (auto const& parameter : json["parameters"])
        fmt::print("  {:<36} {}\n", parameter["name"].get<std::string>(), parameter["shape"].dump());
}

}  // namespace

Action add_inspect(CLI::App& app) {
    struct Options {
        std::string path;
        bool json = false;
    };
    auto const options = std::make_shared<Options>();
    CLI::App* const command =
        app.add_subcommand("inspect", "Show a checkpoint: position, settings, digests, parameters");
    command->add_option("path", options->path, "Checkpoint file or run directory")
        ->type_name("FILE|DIR")
        ->required();
    command->add_flag("--json", options->json, "As JSON");
    return [options](Arguments&) {
        nlohmann::ordered_json const json = summary(open_checkpoint(options->path));
        if (options->json)
            std::cout << json_text(json) << '\n';
        else
            print(json);
        return ExitCode::finished;
    };
}

}  // namespace holdfast::commands
