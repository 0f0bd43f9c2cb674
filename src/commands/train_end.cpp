// SPDX-License-Identifier: Apache-2.0
#include "commands/train_end.hpp"

#include <span>
#include <utility>

#include "checkpoint/checkpoint_image.hpp"
#include "core/log.hpp"

namespace holdfast::commands {
namespace {

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

}  // namespace

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

AgreedError collective_note_failure(parallel::Communicator const& world, Launch& launch,
                                    TrainOptions const& options, AgreedError const& error) {
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

void end_launch(Launch& launch, ExitCode code, std::string const& asked_here) {
    bool const is_finished = code == ExitCode::finished;
    std::string const stop_reason = asked_here.empty() ? "another rank was asked to stop" : asked_here;
    train::RunState& state = launch.state;
    auto const visit = [&](checkpoint::StateArchive& archive) { state.visit(archive); };
    log::info("{} Parameters digest: {}",
              is_finished
                  ? "Finished."
                  : fmt::format("Stopped at step {} ({}); start again to go on.", state.step, stop_reason),
              checkpoint::parameters_digest(visit).hex());
    launch.run_directory->write_outcome(
        train::counted(outcome_of(launch, code, is_finished ? "finished" : stop_reason),
                       train::EndedBy::request, launch.progress));
    launch.run_directory->release();
}

void note_end_without_training(Launch const& launch, TrainOptions const& options, ExitCode code,
                               char const* reason) {
    auto const last = train::read_outcome(options.run);
    if (code == ExitCode::finished && last && last->code == code) return;
    auto const so_far = train::progress_so_far(last, launch.found.step, options.no_progress_limit);
    note_unowned(options, train::counted(outcome_of(launch, code, reason), train::EndedBy::request, so_far));
}

}  // namespace holdfast::commands
