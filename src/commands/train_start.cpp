// SPDX-License-Identifier: Apache-2.0
#include "commands/train_start.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/durable_file.hpp"
#include "commands/version.hpp"
#include "core/digest.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/stop_request.hpp"
#include "parallel/library_versions.hpp"
#include "parallel/rank_difference.hpp"
#include "train/compute_thread.hpp"
#include "train/numeric_fingerprint.hpp"
#include "train/output_check.hpp"

namespace holdfast::commands {
namespace {

using checkpoint::CheckpointFile;
using parallel::Communicator;

constexpr std::size_t max_binary_bytes = std::size_t{1} << 30;

std::string describe(CheckpointFile const& file) {
    nlohmann::ordered_json json;
    json["settings"] = file.text("/settings/json");
    json["fingerprint"] = file.text("/fingerprint/json");
    json["step"] = file.integer(checkpoint::step_path);
    json["steps_per_epoch"] = file.integer("/progress/steps_per_epoch");
    report::TestResult const test = train::test_result_of(file).value_or(report::TestResult{});
    json["epoch"] = file.integer("/progress/epoch");
    json["evaluated_epochs"] = train::num_evaluated_epochs(file);
    json["test_correct"] = test.correct;
    json["test_count"] = test.count;
    return json.dump();
}

/// Collective. The file given by --init-from, on all ranks.
std::unique_ptr<CheckpointFile> collective_read_init(Communicator const& world, std::string const& path) {
    if (path.empty()) return nullptr;
    std::optional<CheckpointFile> of_root;
    world.agree([&] {
        if (world.rank() == 0)
            of_root.emplace(checkpoint::read_checkpoint_bytes(path, checkpoint::Trailer::optional), path,
                            checkpoint::Trailer::optional);
    });
    return std::make_unique<CheckpointFile>(
        collective_broadcast_file(world, std::move(of_root), checkpoint::Trailer::optional));
}

/// The fingerprint without the note that --allow-platform-change leaves in it.
nlohmann::json platform_of(std::string const& fingerprint) {
    nlohmann::json json = nlohmann::json::parse(fingerprint);
    json.erase("exact_until_step");
    return json;
}

/// The fingerprint the run goes on with. Throws unless the platform is the run's, or may change.
std::string checked_fingerprint(std::string const& of_run, std::string const& here, std::int64_t step,
                                bool allow_change) {
    if (platform_of(of_run) == platform_of(here)) return of_run;
    require(allow_change, ExitCode::do_not_requeue,
            "this machine computes other bits than the run's (the result would no longer be the one an "
            "undisturbed run has): the run "
            "is on {}, here is {}; go on where it was, or give --allow-platform-change to go on inexactly",
            of_run, here);
    log::warning("another numeric platform: the run is bit-exact until step {} only", step);
    nlohmann::ordered_json changed = nlohmann::ordered_json::parse(here);
    nlohmann::json const before = nlohmann::json::parse(of_run);
    changed["exact_until_step"] =
        before.contains("exact_until_step") ? before["exact_until_step"].get<std::int64_t>() : step;
    return changed.dump();
}

}  // namespace

bool collective_stop_requested(Communicator const& world) {
    std::vector<std::string> const all = world.all_gather(stop_signal() != 0 ? "stop" : "");
    return std::any_of(all.begin(), all.end(), [](std::string const& text) { return !text.empty(); });
}

void collective_require_same(Communicator const& world, char const* what, std::string const& mine) {
    std::string const difference = parallel::collective_difference(world, mine);
    if (difference.empty()) return;
    throw AgreedError(
        ExitCode::do_not_requeue,
        fmt::format(
            "{} differ between ranks (the ranks would train different things): {}; start all ranks with "
            "one binary, one command line and one data set",
            what, difference));
}

std::string program_description() {
    return fmt::format("{}\nbinary with digest {}\nLibTorch {} (built with), {} (loaded)\n{}\n",
                       version_line(),
                       digest_of(checkpoint::read_file("/proc/self/exe", max_binary_bytes)).hex(),
                       train::torch_version(), train::torch_version_loaded(), parallel::mpi_version());
}

void collective_require_same_program(Communicator const& world) {
    std::string mine;
    world.agree([&] { mine = program_description(); });
    collective_require_same(world, "programs", mine);
}

FoundRun collective_find_run(Communicator const& world, TrainOptions const& options) {
    FoundRun found;
    std::string description;
    world.agree([&] {
        if (world.rank() != 0) return;
        checkpoint::CheckpointStore store(options.run);
        if (options.resume != "auto" && options.resume != "never") {
            std::error_code ignored;  // what cannot be looked at cannot be read either
            require(!std::filesystem::is_directory(options.resume, ignored), ExitCode::do_not_requeue,
                    "--resume {} is a folder, not a checkpoint file; give one of {}/checkpoints, or go on "
                    "with that "
                    "run by --run {}",
                    options.resume, options.resume, options.resume);
            CheckpointFile const file = checkpoint::CheckpointStore::read(options.resume);
            std::int64_t const step = file.integer(checkpoint::step_path);
            auto const entries = store.list();
            require(entries.empty() || entries.front().step <= step, ExitCode::do_not_requeue,
                    "--resume {} is at step {}, but {} already holds step {} (its later checkpoints would be "
                    "lost); use --resume "
                    "auto to go on, or another --run to branch off",
                    options.resume, step, options.run, entries.front().step);
            description = describe(file);
            return;
        }
        found.newest = store.read_newest_good(checkpoint::DamagedFiles::leave);
        if (!found.newest) return;
        require(options.resume == "auto", ExitCode::do_not_requeue,
                "--resume never, but {} already holds a run at step {} (it would be overwritten); choose "
                "another --run",
                options.run, found.newest->step);
        description = describe(found.newest->file);
    });
    description = world.broadcast(description, 0);
    if (description.empty()) return found;
    nlohmann::json const json = nlohmann::json::parse(description);
    found.exists = true;
    world.agree([&] { found.settings = train::settings_from_json(json.at("settings"), options.run); });
    found.fingerprint = json.at("fingerprint");
    found.step = json.at("step");
    found.steps_per_epoch = json.at("steps_per_epoch");
    found.is_evaluated = json.at("evaluated_epochs") == json.at("epoch");
    found.test_correct = json.at("test_correct");
    found.test_count = json.at("test_count");
    return found;
}

train::Settings collective_resume_settings(Communicator const& world, TrainOptions const& options,
                                           FoundRun const& found) {
    train::Settings settings = options.settings;
    world.agree([&] {
        if (!found.exists) return;
        try {
            settings = train::resume_settings(found.settings, options.settings, options.explicitly_given);
        } catch (Error const& error) {
            fail(error.code(), "{}: {}", options.run, error.what());
        }
    });
    settings.device = collective_resolve_device(world, settings.device);
    return settings;
}

Preparation collective_prepare(Communicator const& world, TrainOptions const& options, FoundRun const& found,
                               train::Settings settings) {
    Preparation ready;
    world.agree([&] {
        if (world.rank() != 0) return;
        train::require_writable_run(options.run);
        if (!options.launch.log_indices.empty())
            train::require_appendable(options.launch.log_indices, options.run);
    });
    ready.init_file = collective_read_init(world, options.init_from);
    world.agree([&] {
        ready.sets = data::open_datasets(settings.data, settings.limit_train, settings.limit_test);
        std::string const digest = data::digest_of(*ready.sets.train, *ready.sets.test).hex();
        require(!found.exists || settings.data_digest == digest, ExitCode::do_not_requeue,
                "the data in {} is not the run's (pixels and labels have digest {}, the run's have {}); give "
                "--data with the run's "
                "data",
                settings.data, digest, settings.data_digest);
        settings.data_digest = digest;
        std::string const init_digest =
            ready.init_file ? ready.init_file->parameters_digest().hex() : settings.init_digest;
        require(!found.exists || settings.init_digest == init_digest, ExitCode::do_not_requeue,
                "--init-from {}: the run did not begin with these weights; leave the flag away to go on",
                options.init_from);
        settings.init_digest = init_digest;
        require(settings.replicas == 0 || settings.replicas >= world.size(), ExitCode::do_not_requeue,
                "{} ranks for {} replicas (a rank needs at least one); start at most {} ranks, or a new run "
                "with --replicas {}",
                world.size(), settings.replicas, settings.replicas, world.size());
    });
    if (settings.replicas == 0) settings.replicas = world.size();
    ready.device = collective_start_device(world, settings, options.cuda_graphs);
    ready.table = parallel::collective_launch_table(world, ready.device.description,
                                                    static_cast<int>(settings.replicas));
    if (settings.threads == 0) settings.threads = default_threads(settings, ready.table);
    collective_require_same(world, "settings", train::to_json(settings));

    world.agree([&] {
        train::require_full_team(static_cast<int>(settings.threads));
        ready.fingerprint =
            train::numeric_fingerprint(static_cast<int>(settings.threads), ready.device.compute);
    });
    collective_require_same(world, "numeric platforms", ready.fingerprint);
    if (found.exists)
        world.agree([&] {
            ready.fingerprint = checked_fingerprint(found.fingerprint, ready.fingerprint, found.step,
                                                    options.allow_platform_change);
        });
    ready.settings = std::move(settings);
    return ready;
}

CheckpointFile collective_broadcast_file(Communicator const& world, std::optional<CheckpointFile> of_root,
                                         checkpoint::Trailer trailer) {
    std::optional<CheckpointFile> file = std::move(of_root);
    std::string const name = world.broadcast(file ? file->name() : std::string(), 0);
    std::uint64_t size = file ? file->bytes().size() : 0;
    world.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
    std::vector<std::byte> received(file ? 0 : size);
    // Of the root a broadcast only reads.
    world.broadcast(
        file ? std::span(const_cast<std::byte*>(file->bytes().data()), size) : std::span(received), 0);
    world.agree([&] {
        if (!file) file.emplace(std::move(received), name, trailer);
    });
    return std::move(*file);
}

}  // namespace holdfast::commands
