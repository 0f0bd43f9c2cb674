// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/log.hpp"
#include "core/seconds_since.hpp"
#include "core/stop_request.hpp"
#include "report/epoch_line.hpp"
#include "train/evaluate.hpp"
#include "train/gradient_copy.hpp"
#include "train/replica_check.hpp"
#include "train/step_rates.hpp"
#include "train/time_limit.hpp"
#include "train/training_engine.hpp"

namespace holdfast::train {
namespace {

using Clock = std::chrono::steady_clock;

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

double seconds_since_1970() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double accuracy_of(std::int64_t correct, std::int64_t count) {
    return count > 0 ? static_cast<double>(correct) / static_cast<double>(count) : 0;
}

double accuracy_of(EvaluationSums const& sums) { return accuracy_of(sums.correct, sums.count); }

/// Disk trouble does not matter any more: what is to be done next does not need that checkpoint.
void finish_older_save(RunDirectory& run_directory) {
    try {
        run_directory.finish_save();
    } catch (Error const& error) {
        if (error.code() != ExitCode::retry) throw;
        log::warning("{}", error.what());
    }
}

}  // namespace

std::int64_t end_step(Settings const& settings, std::int64_t steps_per_epoch) {
    std::int64_t const all_epochs = settings.epochs * steps_per_epoch;
    return settings.max_steps < 0 ? all_epochs : std::min(all_epochs, settings.max_steps);
}

Trainer::Trainer(TrainerParts const& parts, LaunchOptions options, parallel::ReplicaRange replicas)
    : parts_(parts),
      options_(std::move(options)),
      replicas_(replicas),
      normalization_(data::cifar10_normalization()),
      learning_rates_(learning_rate_schedule(parts.state.settings, parts.state.steps_per_epoch)),
      schedule_(options_.save_every, parts.state.steps_per_epoch, now_s()),
      is_trace_due_(options_.profile_steps.has_value()) {
    if (options_.log_indices.empty()) return;
    parts_.communicator.agree([&] {
        if (!is_root()) return;
        indices_.open(options_.log_indices, std::ios::app);
        require(
            indices_.is_open(), ExitCode::do_not_requeue,
            "cannot append to --log-indices {}; give a file in a folder that exists and may be written to",
            options_.log_indices);
    });
}

Outcome Trainer::run() {
    Outcome const outcome = train_to_end();
    collective_write_trace();
    return outcome;
}

Outcome Trainer::train_to_end() {
    RunState& state = parts_.state;
    std::int64_t const end = end_step(state.settings, state.steps_per_epoch);
    data::BatchLoader loader(parts_.train_set, normalization_,
                             loader_plan(state.settings, replicas_, state.step, end), parts_.train_images);
    report::ProgressBar bar(is_root() ? options_.progress : report::ProgressMode::never);

    // The launch before this one may have been stopped while it evaluated.
    if (static_cast<std::int64_t>(state.history.size()) < state.epoch && !finish_epoch())
        return collective_stop();
    while (state.step < end) {
        Clock::time_point const start = Clock::now();
        StepResult const result = do_step(loader);
        double const step_s = seconds_since(start);
        longest_step_s_ = std::max(longest_step_s_, step_s);
        epoch_times_.seconds += step_s;
        epoch_times_.samples += result.samples;
        bar.update(progress());
        // Rank 0 alone reads the parameters here, as for a save: no rank can change them before the next exchange, which needs
        // rank 0.
        if (parts_.run_directory && options_.digest_every_steps > 0 &&
            state.step % options_.digest_every_steps == 0) {
            parts_.training_step.fetch_state();
            parts_.run_directory->record_digest(state);
        }

        bool const ends_epoch = state.step % state.steps_per_epoch == 0;
        if (ends_epoch) bar.clear();
        bool const is_open = ends_epoch && !finish_epoch();
        if ((result.stop_requested && state.step < end) || is_open) {
            bar.clear();
            return collective_stop();
        }
        save_if_due(collective_check_if_due());
        if (is_trace_due_ && state.step > options_.profile_steps->last) collective_write_trace();
    }
    bar.clear();
    collective_save();
    bool const is_evaluated = !state.history.empty() && state.history.back().step == state.step;
    if (is_evaluated) {
        report::TestResult const& test = *state.history.back().test;
        log::info("{}", report::test_line(log_device(state.settings), accuracy_of(test.correct, test.count)));
    } else if (auto const sums = collective_evaluate_state()) {
        log::info("{}", report::test_line(log_device(state.settings), accuracy_of(*sums)));
    } else {
        log::info("All steps are done and saved, but not evaluated: asked to stop. 'holdfast eval' does it.");
    }
    return Outcome::finished;
}

void Trainer::collective_write_trace() {
    if (!std::exchange(is_trace_due_, false)) return;
    PhaseTrace& trace = *parts_.phases.trace();
    auto const [first, last] = *options_.profile_steps;
    if (!trace.finish()) {
        log::warning(
            "--profile-steps {}:{}: this launch trained none of these steps, so nothing was recorded", first,
            last);
        return;
    }
    std::string const text = trace.collective_json(parts_.communicator);
    if (parts_.run_directory) parts_.run_directory->write_trace(text);
}

Outcome Trainer::collective_stop() {
    collective_save();
    return Outcome::stopped;
}

bool Trainer::wants_stop() {
    if (!stop_reason_.empty()) return true;
    if (int const signal = stop_signal(); signal != 0)
        stop_reason_ = fmt::format("asked to stop by signal {}", signal);
    else if (parts_.run_directory && parts_.run_directory->wants_drain())
        stop_reason_ = "asked to stop by the file drain";
    else if (is_root() && options_.end_time_s)
        stop_reason_ = reason_if_time_is_up(
            *options_.end_time_s, stop_lead_s(longest_step_s_, longest_save_s_), seconds_since_1970());
    return !stop_reason_.empty();
}

StepResult Trainer::do_step(data::BatchLoader& loader) {
    RunState& state = parts_.state;
    double const lr = optim::learning_rate_at(learning_rates_, state.step);
    Clock::time_point const start = Clock::now();
    if (!parts_.training_step.is_ahead()) parts_.phases.enter(Phase::data, state.step);
    data::StepBatch const& batch = loader.next();
    double const data_wait_s = loader.last_wait_s();
    epoch_times_.data_wait_s += data_wait_s;
    if (!options_.log_indices.empty()) collective_log_indices(batch);
    auto const look_ahead = [&]() -> data::StepBatch const* {
        // Nothing is in hand when an epoch has been evaluated, after which the launch may end.
        if ((state.step + 1) % state.steps_per_epoch == 0) return nullptr;
        parts_.phases.enter(Phase::data, state.step + 1);
        return loader.look_ahead();
    };
    StepResult const result = parts_.training_step.run(
        batch, parts_.train_set.shape(), sgd_rates(state.settings, lr, state.step), wants_stop(), look_ahead);
    parts_.phases.enter(Phase::record, state.step);
    if (!result.is_finite) {
        if (parts_.run_directory) finish_older_save(*parts_.run_directory);
        throw AgreedError(
            ExitCode::do_not_requeue,
            fmt::format(
                "step {}: loss or gradient is NaN or infinite (loss {}; going on would only spread it); the "
                "checkpoint of step {} is good; try a smaller --lr",
                state.step, result.loss, parts_.run_directory ? parts_.run_directory->saved_step() : 0));
    }
    if (parts_.run_directory)
        parts_.run_directory->metrics().append(state.step, "step",
                                               {{"epoch", state.epoch},
                                                {"loss", result.loss},
                                                {"lr", lr},
                                                {"samples", result.samples},
                                                {"correct", result.correct},
                                                {"step_s", seconds_since(start)},
                                                {"data_wait_s", data_wait_s},
                                                {"compute_s", result.compute_s},
                                                {"exchange_s", result.exchange_s}});
    state.open_epoch.loss_sum += static_cast<double>(result.loss) * static_cast<double>(result.samples);
    state.open_epoch.count += result.samples;
    state.open_epoch.correct += result.correct;
    state.step += 1;
    state.epoch = state.step / state.steps_per_epoch;
    return result;
}

bool Trainer::finish_epoch() {
    RunState& state = parts_.state;
    std::optional<EvaluationSums> const evaluated = collective_evaluate_state();
    if (!evaluated) return false;
    EvaluationSums const& test = *evaluated;
    report::EpochRow row;
    row.epoch = state.epoch - 1;
    row.step = state.step;
    row.learning_rate = optim::learning_rate_at(learning_rates_, state.step);
    row.loss = state.open_epoch.loss_sum / static_cast<double>(state.open_epoch.count);
    row.train_count = state.open_epoch.count;
    row.train_correct = state.open_epoch.correct;
    row.test = report::TestResult{test.loss / static_cast<double>(test.count), test.count, test.correct};
    state.history.push_back(row);
    state.open_epoch = {};

    report::EpochSummary summary;
    summary.device = log_device(state.settings);
    summary.epoch = row.epoch;
    summary.batch_size = state.settings.batch_size;
    summary.num_steps = state.steps_per_epoch;
    summary.learning_rate = row.learning_rate;
    summary.loss = row.loss;
    summary.accuracy = accuracy_of(row.train_correct, row.train_count);
    summary.time_s = epoch_times_.seconds;
    summary.images_per_s = epoch_times_.images_per_s();
    summary.data_wait = epoch_times_.seconds > 0 ? epoch_times_.data_wait_s / epoch_times_.seconds : 0;
    log::info("{} | Test acc: {:.2f}%", report::epoch_line(summary), 100 * accuracy_of(test));
    if (parts_.run_directory)
        parts_.run_directory->metrics().append(state.step, "epoch",
                                               {{"epoch", row.epoch},
                                                {"loss", row.loss},
                                                {"accuracy", summary.accuracy},
                                                {"test_loss", row.test->loss},
                                                {"test_accuracy", accuracy_of(test)},
                                                {"time_s", summary.time_s},
                                                {"images_per_s", summary.images_per_s},
                                                {"data_wait", summary.data_wait}});
    epoch_times_ = {};
    return true;
}

report::ProgressState Trainer::progress() const {
    RunState const& state = parts_.state;
    report::ProgressState progress;
    progress.epoch = state.epoch;
    progress.num_epochs = state.settings.epochs;
    progress.step = state.step % state.steps_per_epoch;
    progress.num_steps = state.steps_per_epoch;
    progress.images_per_s = epoch_times_.images_per_s();
    std::int64_t const remaining =
        (state.steps_per_epoch - progress.step) * state.settings.batch_size * state.settings.replicas;
    progress.remaining_s =
        progress.images_per_s > 0 ? static_cast<double>(remaining) / progress.images_per_s : -1;
    return progress;
}

std::optional<EvaluationSums> Trainer::collective_evaluate_state() {
    parts_.phases.enter(Phase::evaluate, parts_.state.step);
    return collective_evaluate(
        parts_.communicator, parts_.slots, parts_.test_set, normalization_,
        parts_.state.settings.eval_batch_size, [this] { return wants_stop(); }, parts_.test_images);
}

void Trainer::save_if_due(bool may_start) {
    // Rank 0 alone saves: its host's memory is the whole state, and no rank can change it before the next exchange, which
    // needs rank 0. So when it does so need not be agreed upon.
    RunDirectory* const run = parts_.run_directory;
    if (run == nullptr) return;
    run->require_ownership();
    bool const is_due = schedule_.is_due_after(parts_.state.step, now_s());
    if (run->is_saving()) return;
    try {
        if (auto const times = run->finish_save()) {
            longest_save_s_ = std::max(longest_save_s_, times->durable_s);
            schedule_.save_done(times->blocked_s + times->busy_s);
            if (saving_fails_) log::info("Saved step {}: checkpoints work again", run->saved_step());
            saving_fails_ = false;
        }
    } catch (Error const& error) {
        if (error.code() != ExitCode::retry) throw;
        if (!saving_fails_)
            log::warning("{}; training goes on and will try again (the checkpoint of step {} is good)",
                         error.what(), run->saved_step());
        saving_fails_ = true;
        schedule_.save_failed(now_s());
        return;
    }
    if (!is_due || !may_start) return;
    parts_.phases.enter(Phase::save, parts_.state.step);
    schedule_.save_started(now_s());
    run->start_save(parts_.state);
}

bool Trainer::collective_check_if_due() {
    std::int64_t const every = options_.check_replicas_every;
    if (every > 0 && parts_.state.step % every != 0) return false;
    collective_check();
    return true;
}

void Trainer::collective_check() {
    if (options_.check_replicas_every == 0) return;
    parts_.phases.enter(Phase::check, parts_.state.step);
    collective_check_replicas(parts_.communicator, parts_.state, parts_.training_step.state_digests(),
                              parts_.run_directory ? parts_.run_directory->saved_step() : 0, parts_.train_set,
                              parts_.test_set);
}

void Trainer::collective_save() {
    collective_check();
    parts_.phases.enter(Phase::save, parts_.state.step);
    parts_.communicator.agree([&] {
        RunDirectory* const run = parts_.run_directory;
        if (run == nullptr) return;
        finish_older_save(*run);
        if (!run->holds(parts_.state)) run->save(parts_.state);
        // A save is not made from it, but who reports the end looks at it.
        parts_.training_step.fetch_state();
    });
}

void Trainer::collective_log_indices(data::StepBatch const& batch) {
    std::string mine;
    for (int replica = replicas_.begin; replica < replicas_.end; ++replica) {
        nlohmann::ordered_json row;
        row["epoch"] = parts_.state.epoch;
        row["step"] = parts_.state.step;
        row["replica"] = replica;
        row["samples"] = batch.replicas[static_cast<std::size_t>(replica - replicas_.begin)].samples;
        mine += row.dump() + "\n";
    }
    std::vector<std::string> const all = parts_.communicator.all_gather(mine);
    parts_.communicator.agree([&] {
        if (!is_root()) return;
        for (std::string const& rows : all) indices_ << rows;
        indices_.flush();
        require(indices_.good(), ExitCode::retry, "cannot write to {} (--log-indices); is the disk full?",
                options_.log_indices);
    });
}

}  // namespace holdfast::train
