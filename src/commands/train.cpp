// SPDX-License-Identifier: Apache-2.0
// holdfast train: assembles a launch and runs it. First start and resume are one path: a new run begins with the checkpoint of
// step 0, and every launch goes on from the newest checkpoint that verifies.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>

#include "checkpoint/checkpoint_store.hpp"
#include "commands/command_line.hpp"
#include "commands/commands.hpp"
#include "commands/settings_flags.hpp"
#include "commands/train_start.hpp"
#include "commands/version.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "parallel/launch_table.hpp"
#include "parallel/library_versions.hpp"
#include "parallel/mpi_session.hpp"
#include "report/epoch_line.hpp"
#include "train/compute_thread.hpp"
#include "train/gradient_copy.hpp"
#include "train/numeric_fingerprint.hpp"
#include "train/trainer.hpp"
#include "train/training_engine.hpp"
#include "train/watchdog.hpp"

namespace holdfast::commands {
namespace {

using checkpoint::CheckpointFile;
using parallel::Communicator;

std::map<std::string, report::ProgressMode> const progress_modes{{"auto", report::ProgressMode::automatic},
                                                                 {"always", report::ProgressMode::always},
                                                                 {"never", report::ProgressMode::never}};

/// When this launch must be over, in seconds since 1970: by the flag, or by what the job's script or SLURM says.
std::optional<double> end_time_s(double stop_after_minutes) {
    std::optional<double> end;
    for (char const* const name : {"HOLDFAST_END_TIME", "SLURM_JOB_END_TIME"}) {
        char const* const text = std::getenv(name);
        if (text == nullptr || *text == '\0') continue;
        char* rest = nullptr;
        end = std::strtod(text, &rest);
        require(*rest == '\0' && *end > 0, ExitCode::usage, "{}={}: not a time in seconds since 1970", name,
                text);
        break;
    }
    if (stop_after_minutes > 0) {
        std::chrono::duration<double> const now = std::chrono::system_clock::now().time_since_epoch();
        double const own_end = now.count() + 60 * stop_after_minutes;
        end = std::min(end.value_or(own_end), own_end);
    }
    return end;
}

void print_start(Communicator const& world, Preparation const& ready, TrainOptions const& options,
                 train::TrainingEngine& engine) {
    train::Settings const& settings = ready.settings;
    log::info("{} | LibTorch {} ({}) | {} ranks on {} hosts | {} exchange, {} replicas at a time per rank",
              version_line(), train::torch_version(), train::cpu_capability(), world.size(),
              world.num_hosts(), engine.exchange().name(), engine.slots().size());
    if (settings.device == "cuda")
        log::info("NCCL {} (built with), {} (loaded)", parallel::nccl_version_built(),
                  parallel::nccl_version_loaded());
    log::info("{}", ready.table.text());
    for (std::string const& warning : ready.table.warnings()) log::warning("{}", warning);
    log::info("{} of width {}, {} replicas x {} samples = global batch {}, {} threads per replica, seed {}",
              settings.model, settings.width, settings.replicas, settings.batch_size,
              settings.replicas * settings.batch_size, settings.threads, settings.seed);
    log::info("Data: {} and {}", ready.sets.train->description(), ready.sets.test->description());
    log::info("Run directory: {}", options.run);
}

void print_finished(FoundRun const& found, train::Settings const& settings, TrainOptions const& options) {
    std::int64_t const end = train::end_step(settings, found.steps_per_epoch);
    std::string const done =
        found.step > end ? fmt::format("{} steps are done, more than the {} now asked for", found.step, end)
                         : fmt::format("{} of {} steps done", found.step, end);
    log::info(
        "The run in {} is finished: {}. Raise --epochs or --max-steps to go on, or choose another --run.",
        options.run, done);
    if (found.test_count > 0)
        log::info("{}",
                  report::test_line(train::log_device(settings), static_cast<double>(found.test_correct) /
                                                                     static_cast<double>(found.test_count)));
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
            run_directory.save_import(state, file);
        }
    }
    auto newest = run_directory.read_newest_good();
    if (!newest) {
        run_directory.save(state);  // step 0: settings and first weights are durable before the first step
        newest = run_directory.read_newest_good();
    }
    return std::move(newest->bytes);
}

/// What the end of a launch has to know of it, wherever it ends.
struct Launch {
    FoundRun found;
    train::RunState state;
    std::unique_ptr<train::RunDirectory> run_directory;  ///< on rank 0, once the run is its own
    train::ProgressSoFar progress;                       ///< on rank 0
};

train::LaunchOutcome outcome_of(Launch const& launch, ExitCode code, std::string reason) {
    train::LaunchOutcome outcome;
    outcome.code = code;
    outcome.reason = std::move(reason);
    bool const is_owner = launch.run_directory != nullptr;
    outcome.step = is_owner ? launch.state.step : launch.found.step;
    outcome.epoch = is_owner ? launch.state.epoch : launch.found.step / launch.found.steps_per_epoch;
    outcome.saved_step = is_owner ? launch.run_directory->saved_step() : launch.found.step;
    return outcome;
}

/// Rank 0, before the run is owned: the outcome, as far as it can be left. It matters less than what led to it.
void note_unowned(TrainOptions const& options, train::LaunchOutcome const& outcome) {
    if (options.dry_run || outcome.code == ExitCode::owned_elsewhere) return;
    try {
        train::write_outcome_of_unowned(options.run, outcome);
    } catch (Error const&) {}
}

/// Rank 0: the outcome of a launch that an error ends, and whether it is worth another. The error matters more than that writing
/// may fail too.
Error note_failure(Launch& launch, TrainOptions const& options, ExitCode code, std::string const& reason) {
    if (!launch.run_directory) {
        auto const last = train::read_outcome(options.run);
        auto const so_far = train::progress_so_far(last, launch.found.step, options.no_progress_limit);
        auto const outcome = train::counted(outcome_of(launch, code, reason), train::EndedBy::error, so_far);
        note_unowned(options, outcome);
        return {outcome.code, outcome.reason};
    }
    try {
        launch.run_directory->finish_save();
    } catch (Error const& error) {
        log::warning("{}", error.what());
    }
    auto const outcome =
        train::counted(outcome_of(launch, code, reason), train::EndedBy::error, launch.progress);
    if (code == ExitCode::owned_elsewhere) return {outcome.code, outcome.reason};
    try {
        launch.run_directory->write_outcome(outcome);
    } catch (Error const& error) {
        log::warning("outcome.json could not be written: {}", error.what());
    }
    return {outcome.code, outcome.reason};
}

/// Collective, which it can be because all ranks have this error: what they end with. Returns on no rank before rank 0 has
/// written the outcome, so that none ends the others too early.
AgreedError collective_note_failure(Communicator const& world, Launch& launch, TrainOptions const& options,
                                    AgreedError const& error) {
    int code = static_cast<int>(error.code());
    std::string reason = error.what();
    if (world.rank() == 0) {
        Error const noted = note_failure(launch, options, error.code(), reason);
        code = static_cast<int>(noted.code());
        reason = noted.what();
    }
    world.broadcast(std::as_writable_bytes(std::span(&code, 1)), 0);
    return {static_cast<ExitCode>(code), world.broadcast(reason, 0)};
}

train::OwnedRun owned_run(Launch const& launch) {
    train::RunDirectory const& run = *launch.run_directory;
    return {std::filesystem::absolute(run.path()), run.temp_dir(), run.launch(), launch.state.steps_per_epoch,
            launch.progress};
}

/// Collective. All ranks hold the checkpoint's state on return.
void collective_load(Communicator const& world, train::RunState& state, std::vector<std::byte> bytes,
                     Preparation const& ready, TrainOptions const& options) {
    bytes = collective_broadcast_bytes(world, std::move(bytes));
    world.agree([&] {
        state.load(CheckpointFile(std::move(bytes), options.run));
        state.settings = ready.settings;  // limits may have been raised
        state.fingerprint = ready.fingerprint;
    });
    world.barrier();
    if (state.step > 0)
        log::info("{}", report::resume_line(train::log_device(state.settings), state.epoch,
                                            state.step % state.steps_per_epoch, state.steps_per_epoch));
}

/// Rank 0, after the last save: the closing line, outcome.json, and the run is free for the next launch.
void end_launch(Launch& launch, ExitCode code, std::string const& stop_reason) {
    bool const is_finished = code == ExitCode::finished;
    train::RunState& state = launch.state;
    auto const visit = [&](checkpoint::StateArchive& archive) { state.visit(archive); };
    log::info("{} Parameters digest: {}",
              is_finished ? "Finished."
                          : fmt::format("Stopped at step {} ({}); start again to go on.", state.step,
                                        stop_reason.empty() ? "another rank was asked to" : stop_reason),
              checkpoint::parameters_digest(visit).hex());
    launch.run_directory->write_outcome(
        train::counted(outcome_of(launch, code, is_finished ? "finished" : stop_reason),
                       train::EndedBy::request, launch.progress));
    launch.run_directory->release();
}

/// Rank 0, for a launch that has nothing to do: the outcome says so, unless it does already.
void note_end_without_training(Launch const& launch, TrainOptions const& options, ExitCode code,
                               char const* reason) {
    auto const last = train::read_outcome(options.run);
    if (code == ExitCode::finished && last && last->code == code) return;
    auto const so_far = train::progress_so_far(last, launch.found.step, options.no_progress_limit);
    note_unowned(options, train::counted(outcome_of(launch, code, reason), train::EndedBy::request, so_far));
}

ExitCode stopped_early(Communicator const& world, Launch const& launch, TrainOptions const& options) {
    log::info("Asked to stop before training began; nothing was changed. Start again to go on.");
    if (world.rank() == 0)
        note_end_without_training(launch, options, ExitCode::retry, "asked to stop before training began");
    return ExitCode::retry;
}

ExitCode train_run(Communicator const& world, TrainOptions const& options, Launch& launch,
                   train::Watchdog& watchdog) {
    collective_require_same_program(world);
    collective_require_same(world, "command lines", options.command_text);
    FoundRun const& found = launch.found = collective_find_run(world, options);
    watchdog.phases().enter(train::Phase::start, found.step);
    train::Settings settings = collective_resume_settings(world, options, found);
    if (found.exists && options.resume == "auto" && found.is_evaluated &&
        found.step >= train::end_step(settings, found.steps_per_epoch)) {
        print_finished(found, settings, options);
        if (world.rank() == 0) note_end_without_training(launch, options, ExitCode::finished, "finished");
        return ExitCode::finished;
    }
    if (collective_stop_requested(world)) return stopped_early(world, launch, options);
    Preparation const ready = collective_prepare(world, options, found, std::move(settings));
    train::TrainingEngine engine(world, ready.settings,
                                 train::network_config(ready.settings, *ready.sets.train), ready.table,
                                 ready.device.compute);
    train::RunState& state = launch.state;
    state.layout = &engine.network().layout;
    state.tensors = engine.tensors();
    state.settings = ready.settings;
    state.fingerprint = ready.fingerprint;
    state.steps_per_epoch =
        data::steps_per_epoch(ready.sets.train->size(), static_cast<int>(ready.settings.replicas),
                              ready.settings.batch_size, train::tail_of(ready.settings));
    print_start(world, ready, options, engine);
    if (options.dry_run) {
        log::info(
            "Dry run: everything is in order; {} steps in {} epochs would be trained. Nothing was written.",
            train::end_step(ready.settings, state.steps_per_epoch) - found.step, ready.settings.epochs);
        return ExitCode::finished;
    }
    if (!found.exists) {
        engine.initialize(world, static_cast<std::uint64_t>(ready.settings.seed));
        world.agree([&] {
            if (!ready.init_file || world.local_rank() != 0) return;
            train::load_weights(*ready.init_file, *state.layout, state.tensors);
            require(
                train::all_finite(state.tensors.parameters) && train::all_finite(state.tensors.statistics),
                ExitCode::do_not_requeue,
                "--init-from {}: a weight or running statistic is NaN or infinite (training would only "
                "spread it); "
                "give another file",
                options.init_from);
        });
    }

    if (collective_stop_requested(world)) return stopped_early(world, launch, options);

    std::vector<std::byte> bytes;
    std::optional<train::LaunchOutcome> last;
    world.agree([&] {
        if (world.rank() != 0) return;
        launch.run_directory = std::make_unique<train::RunDirectory>(
            options.run, options.keep, ready.table.host_names(), world.size(), watchdog.phases());
        last = train::read_outcome(options.run);
        launch.progress = train::progress_so_far(last, found.step, options.no_progress_limit);
    });
    watchdog.collective_own_run(world, launch.run_directory ? owned_run(launch) : train::OwnedRun{});
    world.agree([&] {
        if (world.rank() != 0) return;
        log::open_file((launch.run_directory->path() / "train.log").string());
        bytes = begin_or_continue(*launch.run_directory, state, options);
        launch.progress =
            train::progress_so_far(last, launch.run_directory->saved_step(), options.no_progress_limit);
    });
    collective_load(world, state, std::move(bytes), ready, options);
    train::Trainer trainer({world, *ready.sets.train, *ready.sets.test, engine.slots(),
                            engine.training_step(), state, launch.run_directory.get(), watchdog.phases()},
                           options.launch, engine.replicas());
    engine.training_step().report_to(watchdog.phases());
    engine.training_step().load_state();
    ExitCode const code = trainer.run() == train::Outcome::finished ? ExitCode::finished : ExitCode::retry;
    watchdog.phases().enter(train::Phase::shutdown, state.step);
    world.agree([&] {
        if (launch.run_directory) end_launch(launch, code, trainer.stop_reason());
    });
    return code;
}

ExitCode run_train(TrainOptions const& options, Arguments& arguments) {
    train::check_ranges(options.settings);
    train::keep_freed_memory();
    train::Watchdog watchdog(options.watchdog_seconds);
    parallel::MpiSession const mpi(arguments.argc, arguments.argv);
    Communicator world = Communicator::collective_world();
    log::set_rank(world.rank(), world.size(), world.host_name());
    watchdog.collective_attach(world);
    Launch launch;
    try {
        ExitCode const code = train_run(world, options, launch, watchdog);
        world.barrier();  // mpirun kills the others when the first rank leaves with another code than 0
        watchdog.detach();
        return code;
    } catch (AgreedError const& error) {
        throw collective_note_failure(world, launch, options, error);
    } catch (Error const& error) {
        if (world.rank() == 0) throw note_failure(launch, options, error.code(), error.what());
        throw;
    } catch (std::exception const& error) {
        if (world.rank() == 0) throw note_failure(launch, options, ExitCode::internal_error, error.what());
        throw;
    }
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
    train::SaveEvery& save_every = options->launch.save_every;
    command
        ->add_option("--save-every-epochs", save_every.epochs,
                     "Checkpoint every N epochs (0: only at the end; without any --save-every-*: as often as "
                     "costs at most 1 % of the time)")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--save-every-steps", save_every.steps, "Checkpoint every N steps (0: no)")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--save-every-minutes", save_every.minutes, "Checkpoint every N minutes (0: no)")
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option("--stop-after-minutes", options->stop_after_minutes,
                     "Save and stop (exit 75) before this launch is N minutes old (0: no limit)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option("--check-replicas-every", options->launch.check_replicas_every,
                     "Compare all ranks' state and data every N steps and before saving (0: no)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option(
            "--no-progress-limit", options->no_progress_limit,
            "Launches in a row that may end by an error without a new checkpoint (0: any number); then 93")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option(
            "--digest-every", options->launch.digest_every_steps,
            "Record the parameters' digest in the ledger every N steps, for 'holdfast replay' (0: no)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command->add_option("--keep", options->keep, "Newest checkpoints to keep, at least 2")
        ->capture_default_str()
        ->check(CLI::Range(2, 1000000));
    command
        ->add_option("--watchdog-seconds", options->watchdog_seconds,
                     "End with 75 where nothing gets on for N seconds, or 20 steps if longer (0: never)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command->add_option("--resume", options->resume, "auto, never, or a checkpoint FILE")
        ->capture_default_str();
    command->add_option("--init-from", options->init_from,
                        "First weights from a checkpoint or HDF5 file with /model");
    command->add_option("--log-indices", options->launch.log_indices,
                        "Write the sample numbers of every step and replica to FILE");
    command->add_option("--progress", options->progress, "Progress bar: auto, always or never")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "always", "never"}));
    command->add_flag("--allow-platform-change", options->allow_platform_change,
                      "Go on where the machine computes other bits");
    command->add_flag("--dry-run", options->dry_run, "Check everything, write nothing");
    command->add_flag("--print-config", options->print_config, "Print all flags as a --config file and exit");
    return [command, options](Arguments& arguments) {
        options->explicitly_given = explicitly_given(*command);
        if (options->settings.device == "auto") options->explicitly_given.erase("device");
        options->command_text = config_text(*command);
        options->launch.end_time_s = end_time_s(options->stop_after_minutes);
        options->launch.progress = progress_modes.at(options->progress);
        if (options->print_config) {
            std::cout << options->command_text;
            return ExitCode::finished;
        }
        return run_train(*options, arguments);
    };
}

}  // namespace holdfast::commands
