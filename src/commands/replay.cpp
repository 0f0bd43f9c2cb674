// SPDX-License-Identifier: Apache-2.0
// holdfast replay: computes a step of a run again, from an older checkpoint and on any number of ranks, and compares the
// parameters with those in the ledger. A host that computes wrong bits is found this way, without touching the run.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "checkpoint/checkpoint_store.hpp"
#include "commands/commands.hpp"
#include "commands/number_flag.hpp"
#include "commands/run_path.hpp"
#include "commands/train_start.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/stop_request.hpp"
#include "optim/learning_rate.hpp"
#include "parallel/mpi_session.hpp"
#include "train/compute_thread.hpp"
#include "train/ledger.hpp"
#include "train/step_rates.hpp"
#include "train/training_engine.hpp"

namespace holdfast::commands {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointFile;
using CheckpointEntry = checkpoint::CheckpointStore::Entry;
using parallel::Communicator;
using train::LedgerRow;
using train::RowKind;

struct ReplayOptions {
    std::string run;
    std::int64_t step = 0;
    std::string data;
};

/// What rank 0 finds in the run.
struct Task {
    std::vector<LedgerRow> recorded;     ///< that tell of the parameters at the step, intact
    std::optional<CheckpointFile> file;  ///< to begin with
};

constexpr std::size_t max_steps_named = 20;

std::string steps_text(std::set<std::int64_t> const& steps) {
    if (steps.size() <= max_steps_named) return fmt::format("{}", fmt::join(steps, ", "));
    std::vector<std::int64_t> const last(std::prev(steps.end(), max_steps_named), steps.end());
    return fmt::format("{} steps, the last of them {}", steps.size(), fmt::join(last, ", "));
}

/// The first step of the history that the step belongs to: 0, or that of the newest file brought in before.
std::int64_t history_begin(train::LedgerText const& ledger, std::int64_t step) {
    std::int64_t begin = 0;
    for (LedgerRow const& row : ledger.rows)
        if (row.kind == RowKind::import && row.end.step <= step) begin = std::max(begin, row.end.step);
    return begin;
}

/// `entries`: the kept checkpoints, good or not.
std::vector<LedgerRow> recorded_at(train::LedgerText const& ledger,
                                   std::vector<CheckpointEntry> const& entries,
                                   ReplayOptions const& options) {
    auto const can_begin_before = [&](std::int64_t step) {
        return std::ranges::any_of(entries,
                                   [&, begin = history_begin(ledger, step)](CheckpointEntry const& entry) {
                                       return begin <= entry.step && entry.step < step;
                                   });
    };
    std::vector<LedgerRow> recorded;
    std::set<std::int64_t> steps, steps_to_choose;
    for (LedgerRow const& row : ledger.rows) {
        if (row.kind == RowKind::start || row.kind == RowKind::import) continue;  // nothing was computed
        if (steps.insert(row.end.step).second && can_begin_before(row.end.step))
            steps_to_choose.insert(row.end.step);
        if (row.end.step != options.step) continue;
        require(row.is_intact, ExitCode::do_not_requeue,
                "{}/ledger.jsonl: line {}, which tells of step {}, was edited or damaged (its check does not "
                "fit its "
                "content); holdfast verify {} says what else is",
                options.run, row.line, row.end.step, options.run);
        recorded.push_back(row);
    }
    require(!steps.empty(), ExitCode::do_not_requeue,
            "{}/ledger.jsonl tells of no step (there is nothing to compare with); train with --digest-every "
            "N, or "
            "replay after the first checkpoint",
            options.run);
    require(
        !recorded.empty(), ExitCode::do_not_requeue,
        "no digest of step {} was recorded in {}/ledger.jsonl (there is nothing to compare with); {}train "
        "with --digest-every N",
        options.step, options.run,
        steps_to_choose.empty() ? "" : fmt::format("choose one of {}, or ", steps_text(steps_to_choose)));
    return recorded;
}

/// The newest good checkpoint before the step that belongs to the same history.
void find_checkpoint(ReplayOptions const& options, train::LedgerText const& ledger,
                     std::vector<CheckpointEntry> const& entries, Task& task) {
    std::int64_t const history_begins = history_begin(ledger, options.step);
    std::set<std::int64_t> kept;
    for (CheckpointEntry const& entry : entries) {
        kept.insert(entry.step);
        if (entry.step >= options.step || entry.step < history_begins || task.file) continue;
        try {
            task.file = checkpoint::CheckpointStore::read(entry.path);
        } catch (Error const& error) {
            if (error.code() != ExitCode::do_not_requeue) throw;
            log::warning("skipped a checkpoint: {}", error.what());
        }
    }
    require(task.file.has_value(), ExitCode::do_not_requeue,
            "{} keeps no good checkpoint of a step from {} to {} (replay computes from there to step {}); it "
            "keeps {}; "
            "choose a later --step, or keep more with train --keep N",
            options.run, history_begins, options.step - 1, options.step,
            kept.empty() ? "none" : "steps " + steps_text(kept));
}

Task find_task(ReplayOptions const& options) {
    require(is_run_directory(options.run), ExitCode::do_not_requeue,
            "{} is a file (the ledger with the digests is in the run directory); give a run directory",
            options.run);
    train::LedgerText const ledger = train::read_ledger(fs::path(options.run) / "ledger.jsonl");
    Task task;
    auto const entries = checkpoint::CheckpointStore(options.run).list();
    task.recorded = recorded_at(ledger, entries, options);
    find_checkpoint(options, ledger, entries, task);
    return task;
}

/// Collective. What train would go on with, had the run just stopped at this checkpoint.
Preparation collective_prepare_replay(Communicator const& world, CheckpointFile const& file,
                                      ReplayOptions const& options) {
    FoundRun found;
    found.exists = true;
    world.agree(
        [&] { found.settings = train::settings_from_json(file.text("/settings/json"), file.name()); });
    found.fingerprint = file.text("/fingerprint/json");
    found.step = file.integer(checkpoint::step_path);
    found.steps_per_epoch = file.integer("/progress/steps_per_epoch");
    train::Settings settings = found.settings;
    if (!options.data.empty()) settings.data = options.data;
    TrainOptions const no_options;
    return collective_prepare(world, no_options, found, std::move(settings));
}

/// Collective. From state.step to `end`. False if a signal asked to stop before.
bool collective_compute(Communicator const& world, Preparation const& ready, train::TrainingEngine& engine,
                        train::RunState& state, std::int64_t end) {
    train::Settings const& settings = state.settings;
    optim::Schedule const schedule = train::learning_rate_schedule(settings, state.steps_per_epoch);
    data::LoaderPlan const plan = train::loader_plan(settings, engine.replicas(), state.step, end);
    std::unique_ptr<data::DeviceImages> images;
    world.agree([&] { images = engine.make_device_images(*ready.sets.train, plan.device_plan()); });
    data::BatchLoader loader(*ready.sets.train, data::cifar10_normalization(), plan, images.get());
    while (state.step < end) {
        train::StepResult const result = engine.training_step().run(
            loader.next(), ready.sets.train->shape(),
            train::sgd_rates(settings, optim::learning_rate_at(schedule, state.step), state.step),
            stop_signal() != 0, [&] { return loader.look_ahead(); });
        state.step += 1;
        if (result.stop_requested && state.step < end) return false;
    }
    return true;
}

/// Rank 0: one line for every row that tells of the step.
bool compare(std::string const& here, std::vector<std::string> const& hosts, int ranks, Task const& task,
             std::int64_t step) {
    bool all_same = true;
    for (LedgerRow const& row : task.recorded) {
        bool const is_same = row.parameters == here;
        all_same = all_same && is_same;
        log::info("step {}: {:<7} parameters {} here ({} ranks on {}), {} by launch {} ({} ranks on {})",
                  step, is_same ? "same" : "DIFFERS", here, ranks, fmt::join(hosts, ", "), row.parameters,
                  row.launch, row.ranks, fmt::join(row.hosts, ", "));
    }
    return all_same;
}

ExitCode run_replay(ReplayOptions const& options, Arguments& arguments) {
    train::keep_freed_memory();
    parallel::MpiSession const mpi(arguments.argc, arguments.argv);
    Communicator const world = Communicator::collective_world();
    log::set_rank(world.rank(), world.size(), world.host_name());

    collective_require_same_program(world);
    Task task;
    world.agree([&] {
        if (world.rank() == 0) task = find_task(options);
    });
    CheckpointFile const file =
        collective_broadcast_file(world, std::move(task.file), checkpoint::Trailer::required);
    Preparation const ready = collective_prepare_replay(world, file, options);

    train::TrainingEngine engine(world, ready.settings,
                                 train::network_config(ready.settings, *ready.sets.train), ready.table,
                                 ready.device.compute);
    train::RunState state;
    state.layout = &engine.network().layout;
    state.tensors = engine.tensors();
    world.agree([&] { state.load(file); });
    state.settings = ready.settings;
    world.barrier();
    engine.training_step().load_state();
    std::int64_t const first_step = state.step;
    log::info("Replaying steps {} to {} from {} on {} ranks", first_step + 1, options.step, file.name(),
              world.size());
    if (!collective_compute(world, ready, engine, state, options.step)) {
        log::info("Stopped at step {}, as asked to; nothing was compared.", state.step);
        world.barrier();
        return ExitCode::retry;
    }
    bool all_same = true;
    if (world.rank() == 0) {
        engine.training_step().fetch_state();
        auto const visit = [&](checkpoint::StateArchive& archive) { state.visit(archive); };
        all_same = compare(checkpoint::parameters_digest(visit).hex(), ready.table.host_names(), world.size(),
                           task, options.step);
    }
    world.broadcast(std::as_writable_bytes(std::span(&all_same, 1)), 0);
    // The host's memory is read until here, and mpirun kills the others when one leaves with another code than 0.
    world.barrier();
    return all_same ? ExitCode::finished : ExitCode::do_not_requeue;
}

}  // namespace

Action add_replay(CLI::App& app) {
    auto const options = std::make_shared<ReplayOptions>();
    CLI::App* const command = app.add_subcommand(
        "replay", "Compute a step of a run again and compare with its ledger (exit 93 if it differs)");
    command->add_option("run", options->run, "Run directory")->type_name("DIR")->required();
    whole_number(command
                     ->add_option("--step", options->step,
                                  "Step that has a checkpoint's row or a digest in the ledger")
                     ->required(),
                 1);
    command->add_option("--data", options->data, "As train --data (default: the run's)")->type_name("DATA");
    return [options](Arguments& arguments) { return run_replay(*options, arguments); };
}

}  // namespace holdfast::commands
