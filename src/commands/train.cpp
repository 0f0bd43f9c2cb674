// SPDX-License-Identifier: Apache-2.0
// holdfast train: assembles a launch and runs it. First start and resume are one path: a new run begins with the checkpoint of
// step 0, and every launch goes on from the newest checkpoint that verifies.
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/durable_file.hpp"
#include "commands/command_line.hpp"
#include "commands/commands.hpp"
#include "commands/settings_flags.hpp"
#include "commands/version.hpp"
#include "core/digest.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "parallel/launch_table.hpp"
#include "parallel/library_versions.hpp"
#include "parallel/mpi_session.hpp"
#include "report/epoch_line.hpp"
#include "train/compute_thread.hpp"
#include "train/numeric_fingerprint.hpp"
#include "train/trainer.hpp"
#include "train/training_engine.hpp"

namespace holdfast::commands {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointFile;
using parallel::Communicator;

struct TrainOptions {
    train::Settings settings;
    std::set<std::string> explicitly_given;
    train::LaunchOptions launch;
    std::string run = "./holdfast-run";
    std::string resume = "auto";
    std::string init_from;
    int keep = 3;
    bool allow_platform_change = false;
    bool dry_run = false;
    bool print_config = false;
};

std::map<std::string, report::ProgressMode> const progress_modes{{"auto", report::ProgressMode::automatic},
                                                                 {"always", report::ProgressMode::always},
                                                                 {"never", report::ProgressMode::never}};

/// What rank 0 found on disk, told to all ranks.
struct FoundRun {
    bool exists = false;
    train::Settings settings;
    std::string fingerprint;
    std::int64_t step = 0;
    std::int64_t steps_per_epoch = 1;
    std::int64_t test_correct = 0;  ///< of the last evaluated epoch, if it ended at `step`
    std::int64_t test_count = 0;
};

std::string describe(CheckpointFile const& file) {
    nlohmann::ordered_json json;
    json["settings"] = file.text("/settings/json");
    json["fingerprint"] = file.text("/fingerprint/json");
    json["step"] = file.integer(checkpoint::step_path);
    json["steps_per_epoch"] = file.integer("/progress/steps_per_epoch");
    auto const last_of = [&](std::string const& path) -> std::int64_t {
        std::vector<std::byte> const column = file.read(path);
        std::int64_t value = 0;
        if (column.size() >= sizeof value)
            std::memcpy(&value, column.data() + column.size() - sizeof value, sizeof value);
        return value;
    };
    bool const is_evaluated = last_of("/history/step") == file.integer(checkpoint::step_path);
    json["test_correct"] = is_evaluated ? last_of("/history/test_correct") : 0;
    json["test_count"] = is_evaluated ? last_of("/history/test_count") : 0;
    return json.dump();
}

/// Collective. Looks at the run without owning or changing it.
FoundRun collective_find_run(Communicator const& world, TrainOptions const& options) {
    std::string description;
    world.agree([&] {
        if (world.rank() != 0) return;
        checkpoint::CheckpointStore store(options.run);
        if (options.resume != "auto" && options.resume != "never") {
            CheckpointFile const file(checkpoint::CheckpointStore::read(options.resume), options.resume);
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
        if (auto newest = store.read_newest_good(checkpoint::DamagedFiles::leave)) {
            require(options.resume == "auto", ExitCode::do_not_requeue,
                    "--resume never, but {} already holds a run at step {} (it would be overwritten); choose "
                    "another --run",
                    options.run, newest->step);
            description = describe(CheckpointFile(std::move(newest->bytes), newest->path.string()));
        }
    });
    description = world.broadcast(description, 0);
    FoundRun found;
    if (description.empty()) return found;
    nlohmann::json const json = nlohmann::json::parse(description);
    found.exists = true;
    world.agree([&] { found.settings = train::settings_from_json(json.at("settings"), options.run); });
    found.fingerprint = json.at("fingerprint");
    found.step = json.at("step");
    found.steps_per_epoch = json.at("steps_per_epoch");
    found.test_correct = json.at("test_correct");
    found.test_count = json.at("test_count");
    return found;
}

/// Collective. All ranks must say the same; the message names the first that differs.
void collective_require_same(Communicator const& world, char const* what, std::string const& mine) {
    std::vector<std::string> const all = world.all_gather(mine);
    std::vector<std::string> const hosts = world.all_gather(world.host_name());
    for (std::size_t rank = 1; rank < all.size(); ++rank)
        if (all[rank] != all[0])
            throw AgreedError(
                ExitCode::do_not_requeue,
                fmt::format(
                    "{} differ between ranks (the ranks would train different things): rank 0 on {} has {}, "
                    "rank {} on {} has {}; start all ranks with one binary, one command line and one data "
                    "set",
                    what, hosts[0], all[0], rank, hosts[rank], all[rank]));
}

std::vector<std::byte> collective_broadcast_bytes(Communicator const& world, std::vector<std::byte> bytes) {
    std::uint64_t size = bytes.size();
    world.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
    bytes.resize(size);
    world.broadcast(bytes, 0);
    return bytes;
}

/// Collective. The file given by --init-from, on all ranks.
std::unique_ptr<CheckpointFile> collective_read_init(Communicator const& world, std::string const& path) {
    if (path.empty()) return nullptr;
    std::vector<std::byte> bytes;
    world.agree([&] {
        if (world.rank() == 0) bytes = checkpoint::read_file(path, checkpoint::max_checkpoint_bytes);
    });
    bytes = collective_broadcast_bytes(world, std::move(bytes));
    std::unique_ptr<CheckpointFile> file;
    world.agree([&] {
        file = std::make_unique<CheckpointFile>(std::move(bytes), path, checkpoint::Trailer::optional);
    });
    return file;
}

std::string data_digest(data::TrainAndTest const& sets) {
    Digester digester;
    digester.add(data::digest_of(*sets.train).hex());
    digester.add(data::digest_of(*sets.test).hex());
    return digester.finish().hex();
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

std::string resolved_device(std::string const& device) {
    require(device != "cuda", ExitCode::do_not_requeue,
            "--device cuda: this version trains on CPUs (the GPU path is compiled but not yet complete); use "
            "--device cpu");
    return "cpu";
}

void print_start(parallel::LaunchTable const& table, Communicator const& world,
                 train::Settings const& settings, data::TrainAndTest const& sets, TrainOptions const& options,
                 std::string const& exchange, int slots) {
    log::info("{} | LibTorch {} ({}) | {} ranks on {} hosts | {} exchange, {} replicas at a time per rank",
              version_line(), train::torch_version(), train::cpu_capability(), world.size(),
              world.num_hosts(), exchange, slots);
    if (std::string const built = parallel::nccl_version_built(); built != "none")
        log::info("NCCL {} (built with), {} (loaded)", built, parallel::nccl_version_loaded());
    log::info("{}", table.text());
    for (std::string const& warning : table.warnings()) log::warning("{}", warning);
    log::info("{} of width {}, {} replicas x {} samples = global batch {}, {} threads per replica, seed {}",
              settings.model, settings.width, settings.replicas, settings.batch_size,
              settings.replicas * settings.batch_size, settings.threads, settings.seed);
    log::info("Data: {} and {}", sets.train->description(), sets.test->description());
    log::info("Run directory: {}", options.run);
}

/// Rank 0: makes sure the run has a checkpoint and returns the bytes that every launch starts from.
std::vector<std::byte> begin_or_continue(train::RunDirectory& run_directory, train::RunState& state,
                                         TrainOptions const& options) {
    if (options.resume != "auto" && options.resume != "never") {
        auto const newest = run_directory.read_newest_good();
        std::vector<std::byte> bytes = checkpoint::CheckpointStore::read(options.resume);
        CheckpointFile const file(bytes, options.resume);
        if (!newest || newest->step < file.integer(checkpoint::step_path)) {
            state.load(file);
            run_directory.save(state);
        }
    }
    auto newest = run_directory.read_newest_good();
    if (!newest) {
        run_directory.save(state);  // step 0: settings and first weights are durable before the first step
        newest = run_directory.read_newest_good();
    }
    return std::move(newest->bytes);
}

/// The outcome of a launch that an error ends. The error matters more than that this may fail too.
void note_failure(train::RunDirectory& run_directory, ExitCode code, char const* reason,
                  train::RunState const& state) {
    try {
        run_directory.write_outcome(code, reason, state);
    } catch (Error const& error) {
        log::warning("outcome.json could not be written: {}", error.what());
    }
}

ExitCode train_run(Communicator const& world, TrainOptions const& options) {
    bool const is_root = world.rank() == 0;
    FoundRun const found = collective_find_run(world, options);
    train::Settings settings = options.settings;
    world.agree([&] {
        if (found.exists)
            settings = train::resume_settings(found.settings, options.settings, options.explicitly_given);
        settings.device = resolved_device(settings.device);
        require(settings.reduction == "exact", ExitCode::usage,
                "--reduction fast is for GPUs (on CPUs exact is the faster one)");
    });
    if (found.exists && options.resume == "auto" &&
        found.step >= train::end_step(settings, found.steps_per_epoch)) {
        log::info(
            "The run in {} is finished: {} of {} steps done. Raise --epochs or --max-steps to go on, or "
            "choose another --run.",
            options.run, found.step, train::end_step(settings, found.steps_per_epoch));
        if (found.test_count > 0)
            log::info("{}", report::test_line(train::log_device, static_cast<double>(found.test_correct) /
                                                                     static_cast<double>(found.test_count)));
        return ExitCode::finished;
    }

    data::TrainAndTest sets;
    auto const init_file = collective_read_init(world, options.init_from);
    world.agree([&] {
        sets = data::open_datasets(settings.data, settings.limit_train, settings.limit_test);
        std::string const digest = data_digest(sets);
        require(!found.exists || settings.data_digest == digest, ExitCode::do_not_requeue,
                "the data in {} is not the run's (pixels and labels have digest {}, the run's have {}); give "
                "--data with the run's "
                "data",
                settings.data, digest, settings.data_digest);
        settings.data_digest = digest;
        std::string const init_digest =
            init_file ? init_file->parameters_digest().hex() : settings.init_digest;
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
    auto const table = parallel::collective_launch_table(world, "cpu", static_cast<int>(settings.replicas));
    if (settings.threads == 0) settings.threads = table.default_threads_per_replica();
    collective_require_same(world, "settings", version_line() + " " + train::to_json(settings));

    std::string fingerprint;
    world.agree([&] {
        train::require_full_team(static_cast<int>(settings.threads));
        fingerprint = train::numeric_fingerprint(static_cast<int>(settings.threads));
    });
    collective_require_same(world, "numeric platforms", fingerprint);
    if (found.exists)
        world.agree([&] {
            fingerprint = checked_fingerprint(found.fingerprint, fingerprint, found.step,
                                              options.allow_platform_change);
        });

    train::TrainingEngine engine(world, settings, train::network_config(settings, *sets.train), table);
    train::RunState state;
    state.layout = &engine.network().layout;
    state.tensors = engine.tensors();
    state.settings = settings;
    state.fingerprint = fingerprint;
    state.steps_per_epoch =
        data::steps_per_epoch(sets.train->size(), static_cast<int>(settings.replicas), settings.batch_size,
                              settings.tail == "pad" ? data::Tail::pad : data::Tail::exact);
    print_start(table, world, settings, sets, options, engine.exchange().name(), engine.slots().size());
    if (options.dry_run) {
        log::info(
            "Dry run: everything is in order; {} steps in {} epochs would be trained. Nothing was written.",
            train::end_step(settings, state.steps_per_epoch) - found.step, settings.epochs);
        return ExitCode::finished;
    }
    if (!found.exists) {
        engine.initialize(world, static_cast<std::uint64_t>(settings.seed));
        world.agree([&] {
            if (init_file && world.local_rank() == 0)
                train::load_weights(*init_file, *state.layout, state.tensors);
        });
    }

    std::unique_ptr<train::RunDirectory> run_directory;
    std::vector<std::byte> bytes;
    world.agree([&] {
        if (!is_root) return;
        run_directory = std::make_unique<train::RunDirectory>(options.run, options.keep);
        log::open_file((run_directory->path() / "train.log").string());
        bytes = begin_or_continue(*run_directory, state, options);
    });
    try {
        bytes = collective_broadcast_bytes(world, std::move(bytes));
        world.agree([&] {
            state.load(CheckpointFile(std::move(bytes), options.run));
            state.settings = settings;  // limits may have been raised
            state.fingerprint = fingerprint;
        });
        world.barrier();
        if (state.step > 0)
            log::info("{}", report::resume_line(train::log_device, state.epoch,
                                                state.step % state.steps_per_epoch, state.steps_per_epoch));

        train::Trainer trainer({world, *sets.train, *sets.test, engine.slots(), engine.training_step(), state,
                                run_directory.get()},
                               options.launch, engine.replicas());
        train::Outcome const outcome = trainer.run();
        ExitCode const code = outcome == train::Outcome::finished ? ExitCode::finished : ExitCode::retry;
        world.agree([&] {
            if (!is_root) return;
            log::info("{} Parameters digest: {}",
                      code == ExitCode::finished
                          ? "Finished."
                          : fmt::format("Stopped at step {}; start again to go on.", state.step),
                      checkpoint::parameters_digest([&](checkpoint::StateArchive& archive) {
                          state.visit(archive);
                      }).hex());
            run_directory->write_outcome(code, code == ExitCode::finished ? "finished" : "asked to stop",
                                         state);
            run_directory->release();
        });
        return code;
    } catch (Error const& error) {
        if (run_directory) note_failure(*run_directory, error.code(), error.what(), state);
        throw;
    } catch (std::exception const& error) {
        if (run_directory) note_failure(*run_directory, ExitCode::internal_error, error.what(), state);
        throw;
    }
}

ExitCode run_train(TrainOptions const& options, Arguments& arguments) {
    train::check_ranges(options.settings);
    train::keep_freed_memory();
    parallel::MpiSession const mpi(arguments.argc, arguments.argv);
    Communicator const world = Communicator::collective_world();
    log::set_rank(world.rank(), world.size(), world.host_name());
    ExitCode const code = train_run(world, options);
    world.barrier();  // mpirun kills the others when the first rank leaves with another code than 0
    return code;
}

}  // namespace

Action add_train(CLI::App& app) {
    auto const options = std::make_shared<TrainOptions>();
    CLI::App* const command = app.add_subcommand("train", "Train a network, or go on with a run");
    train::Settings& settings = options->settings;
    command
        ->add_option("--data", settings.data, "CIFAR-10 folder, packed .h5 file, 'sample' or 'synthetic[:N]'")
        ->capture_default_str();
    command->add_option("--run", options->run, "Run directory: checkpoints, metrics, log")
        ->capture_default_str();
    command->add_option("--epochs", settings.epochs, "Epochs of the run as a whole")->capture_default_str();
    command->add_option("--max-steps", settings.max_steps, "Steps of the run as a whole (default: no limit)");
    add_model_flags(*command, settings);
    command->add_option("--lr-step-size", settings.lr_step_size, "Epochs between decays of the rate")
        ->capture_default_str();
    command->add_option("--lr-gamma", settings.lr_gamma, "Factor of a decay")->capture_default_str();
    command
        ->add_option("--tail", settings.tail,
                     "Last batch: exact (each sample once) or pad (as DistributedSampler)")
        ->capture_default_str();
    command
        ->add_option("--limit-train", settings.limit_train, "Use only the first N training images (0: all)")
        ->capture_default_str();
    command->add_option("--limit-test", settings.limit_test, "Use only the first N test images (0: all)")
        ->capture_default_str();
    command->add_option("--eval-batch-size", settings.eval_batch_size, "Samples per evaluation batch")
        ->capture_default_str();
    command
        ->add_option("--save-every-epochs", options->launch.save_every_epochs,
                     "Checkpoint every N epochs (0: only at the end)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option("--save-every-steps", options->launch.save_every_steps,
                     "Checkpoint every N steps too (0: no)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command->add_option("--keep", options->keep, "Newest checkpoints to keep, at least 2")
        ->capture_default_str()
        ->check(CLI::Range(2, 1000000));
    command->add_option("--resume", options->resume, "auto, never, or a checkpoint FILE")
        ->capture_default_str();
    command->add_option("--init-from", options->init_from,
                        "First weights from a checkpoint or HDF5 file with /model");
    command->add_option("--log-indices", options->launch.log_indices,
                        "Write the sample numbers of every step and replica to FILE");
    command->add_option("--progress", options->launch.progress, "Progress bar: auto, always or never")
        ->default_str("auto")
        ->transform(CLI::CheckedTransformer(progress_modes, CLI::ignore_case).description(""));
    command->add_flag("--allow-platform-change", options->allow_platform_change,
                      "Go on where the machine computes other bits");
    command->add_flag("--dry-run", options->dry_run, "Check everything, write nothing");
    command->add_flag("--print-config", options->print_config, "Print all flags as a --config file and exit");
    return [command, options](Arguments& arguments) {
        options->explicitly_given = explicitly_given(*command);
        if (options->settings.device == "auto") options->explicitly_given.erase("device");
        if (options->print_config) {
            std::cout << config_text(*command);
            return ExitCode::finished;
        }
        return run_train(*options, arguments);
    };
}

}  // namespace holdfast::commands
