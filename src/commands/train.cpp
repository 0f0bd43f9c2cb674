// SPDX-License-Identifier: Apache-2.0
// holdfast train: assembles a launch and runs it. First start and resume are one path: a new run begins with the checkpoint of
// step 0, and every launch goes on from the newest checkpoint that verifies.
#include "commands/train.hpp"

#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_store.hpp"
#include "commands/doctor.hpp"
#include "commands/train_end.hpp"
#include "commands/train_start.hpp"
#include "commands/version.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "parallel/launch_table.hpp"
#include "parallel/library_versions.hpp"
#include "parallel/mpi_session.hpp"
#include "report/epoch_line.hpp"
#include "report/start_times.hpp"
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
    bool const are_epochs_done = end == settings.epochs * found.steps_per_epoch;
    char const* const advice = !are_epochs_done ? "Raise --max-steps to go on, or choose"
                               : train::schedule_ends_with_run(settings)
                                   ? "Its learning rate was for these epochs: to train for more, choose"
                                   : "Raise --epochs to go on, or choose";
    log::info("The run in {} is finished: {}. {} another --run.", options.run, done, advice);
    if (found.test_count > 0)
        log::info("{}",
                  report::test_line(train::log_device(settings), static_cast<double>(found.test_correct) /
                                                                     static_cast<double>(found.test_count)));
}

/// Rank 0: makes sure the run has a checkpoint and returns the one that every launch starts from.
CheckpointFile begin_or_continue(train::RunDirectory& run_directory, train::RunState& state,
                                 std::optional<checkpoint::StoredCheckpoint> found,
                                 TrainOptions const& options) {
    if (options.resume != "auto" && options.resume != "never") {
        auto const newest = run_directory.read_newest_good();
        CheckpointFile const file = checkpoint::CheckpointStore::read(options.resume);
        if (!newest || newest->step < file.integer(checkpoint::step_path)) {
            state.load(file);
            run_directory.save_import(state, file);
        }
    }
    auto newest = run_directory.read_newest_good(std::move(found));
    if (!newest) {
        run_directory.save(state);  // step 0: settings and first weights are durable before the first step
        newest = run_directory.read_newest_good();
    }
    return std::move(newest->file);
}

train::OwnedRun owned_run(Launch const& launch) {
    train::RunDirectory const& run = *launch.run_directory;
    return {std::filesystem::absolute(run.path()), run.temp_dir(), run.launch(), launch.state.steps_per_epoch,
            launch.progress};
}

/// Collective. All ranks hold the checkpoint's state on return.
void collective_load(Communicator const& world, train::RunState& state, std::optional<CheckpointFile> of_root,
                     Preparation const& ready) {
    CheckpointFile const file =
        collective_broadcast_file(world, std::move(of_root), checkpoint::Trailer::required);
    world.agree([&] {
        state.load(file);
        state.settings = ready.settings;  // limits may have been raised
        state.fingerprint = ready.fingerprint;
    });
    world.barrier();
    if (state.step > 0)
        log::info("{}", report::resume_line(train::log_device(state.settings), state.epoch,
                                            state.step % state.steps_per_epoch, state.steps_per_epoch));
}

/// The images for a device; null on CPUs.
struct DeviceSets {
    std::unique_ptr<data::DeviceImages> train;
    std::unique_ptr<data::DeviceImages> test;
};

/// Collective.
DeviceSets collective_put_on_device(Communicator const& world, Preparation const& ready,
                                    train::TrainingEngine const& engine) {
    DeviceSets sets;
    world.agree([&] {
        data::LoaderPlan const plan = train::loader_plan(ready.settings, engine.replicas(), 0, 0);
        sets.train = engine.make_device_images(*ready.sets.train, plan.device_plan());
        sets.test =
            engine.make_device_images(*ready.sets.test, {.max_samples = ready.settings.eval_batch_size});
    });
    for (data::DeviceImages const* const images : {sets.train.get(), sets.test.get()})
        if (images != nullptr) log::info("{}", images->description());
    return sets;
}

ExitCode stopped_early(Communicator const& world, Launch const& launch, TrainOptions const& options) {
    log::info("Asked to stop before training began; nothing was changed. Start again to go on.");
    if (world.rank() == 0)
        note_end_without_training(launch, options, ExitCode::retry, "asked to stop before training began");
    return ExitCode::retry;
}

DoctorOptions doctor_options(TrainOptions const& options) {
    DoctorOptions of_doctor;
    of_doctor.settings = options.settings;
    of_doctor.command_text = options.command_text;
    of_doctor.run = options.run;
    of_doctor.keep = options.keep;
    return of_doctor;
}

ExitCode train_run(Communicator const& world, TrainOptions const& options, Launch& launch,
                   train::Watchdog& watchdog, report::StartTimes& times) {
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
    times.part_done("find");
    Preparation const ready = collective_prepare(world, options, found, std::move(settings));
    times.part_done("prepare");
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
    times.part_done("network");

    std::optional<CheckpointFile> file;  // on rank 0
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
        times.part_done("own");
        file = begin_or_continue(*launch.run_directory, state,
                                 std::exchange(launch.found.newest, std::nullopt), options);
        launch.progress =
            train::progress_so_far(last, launch.run_directory->saved_step(), options.no_progress_limit);
        times.part_done("read");
    });
    collective_load(world, state, std::move(file), ready);
    DeviceSets const on_device = collective_put_on_device(world, ready, engine);
    train::Trainer trainer(
        {world, *ready.sets.train, *ready.sets.test, engine.slots(), engine.training_step(), state,
         launch.run_directory.get(), watchdog.phases(), on_device.train.get(), on_device.test.get()},
        options.launch, engine.replicas());
    engine.training_step().load_state();
    world.agree([&] {
        if (launch.run_directory) launch.run_directory->take_tensors_from(engine.make_snapshot());
    });
    if (launch.run_directory) {
        times.part_done("load");
        log::info("Ready after {}", times.text());
        launch.run_directory->metrics().append(state.step, "start", times.json());
    }
    engine.training_step().report_to(watchdog.phases());
    ExitCode const code = trainer.run() == train::Outcome::finished ? ExitCode::finished : ExitCode::retry;
    watchdog.phases().enter(train::Phase::shutdown, state.step);
    world.agree([&] {
        if (launch.run_directory) end_launch(launch, code, trainer.stop_reason());
    });
    return code;
}

}  // namespace

ExitCode run_train(TrainOptions const& options, Arguments& arguments) {
    report::StartTimes times;
    train::check_ranges(options.settings);
    train::keep_freed_memory();
    doctor::Launcher launcher;
    if (options.doctor) require_launch(launcher = find_launcher());
    train::Watchdog watchdog(options.watchdog_seconds);
    parallel::MpiSession const mpi(arguments.argc, arguments.argv);
    Communicator world = Communicator::collective_world();
    log::set_rank(world.rank(), world.size(), world.host_name());
    watchdog.collective_attach(world);
    times.part_done("mpi");
    Launch launch;
    try {
        if (options.doctor) collective_require_health(world, doctor_options(options), launcher);
        ExitCode const code = train_run(world, options, launch, watchdog, times);
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

}  // namespace holdfast::commands
