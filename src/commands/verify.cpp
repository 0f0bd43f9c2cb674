// SPDX-License-Identifier: Apache-2.0
// holdfast verify: reads every checkpoint of a run whole and says which are intact. Changes nothing.
#include <filesystem>
#include <iostream>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_image.hpp"
#include "checkpoint/checkpoint_store.hpp"
#include "commands/commands.hpp"
#include "commands/run_path.hpp"
#include "core/error.hpp"

namespace holdfast::commands {
namespace {

namespace fs = std::filesystem;

struct Verdict {
    fs::path path;
    bool is_good = false;
    std::int64_t step = -1;
    std::string state_digest;
    std::string problem;
};

Verdict verify(fs::path const& path) {
    Verdict verdict{path, false, -1, {}, {}};
    try {
        checkpoint::CheckpointFile const file(checkpoint::CheckpointStore::read(path), path.string());
        verdict.step = file.integer(checkpoint::step_path);
        verdict.state_digest = file.state_digest().hex();
        verdict.is_good = true;
    } catch (Error const& error) {
        verdict.problem = error.what();
    }
    return verdict;
}

std::vector<fs::path> checkpoints_of(std::string const& file_or_run) {
    if (!is_run_directory(file_or_run)) return {file_or_run};
    std::vector<fs::path> paths;
    for (auto const& entry : checkpoint::CheckpointStore(file_or_run).list()) paths.push_back(entry.path);
    require_checkpoint(!paths.empty(), file_or_run);
    return paths;
}

}  // namespace

Action add_verify(CLI::App& app) {
    struct Options {
        std::string path;
        bool json = false;
    };
    auto const options = std::make_shared<Options>();
    CLI::App* const command =
        app.add_subcommand("verify", "Check that checkpoints are intact (exit 93 if one is not)");
    command->add_option("path", options->path, "Checkpoint file or run directory")->required();
    command->add_flag("--json", options->json, "As JSON");
    return [options](Arguments&) {
        bool all_good = true;
        nlohmann::ordered_json rows = nlohmann::ordered_json::array();
        for (fs::path const& path : checkpoints_of(options->path)) {
            Verdict const verdict = verify(path);
            all_good = all_good && verdict.is_good;
            rows.push_back({{"file", verdict.path.string()},
                            {"good", verdict.is_good},
                            {"step", verdict.step},
                            {"state_digest", verdict.state_digest},
                            {"problem", verdict.problem}});
            if (!options->json)
                fmt::print("{:<4} {}  {}\n", verdict.is_good ? "good" : "BAD", verdict.path.string(),
                           verdict.is_good
                               ? fmt::format("step {}, state {}", verdict.step, verdict.state_digest)
                               : verdict.problem);
        }
        if (options->json) std::cout << rows.dump(2) << '\n';
        return all_good ? ExitCode::finished : ExitCode::do_not_requeue;
    };
}

}  // namespace holdfast::commands
