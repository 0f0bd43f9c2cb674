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
#include "core/stop_request.hpp"
#include "optim/learning_rate.hpp"
#include "report/epoch_line.hpp"
#include "train/evaluate.hpp"
#include "train/gradient_copy.hpp"

namespace holdfast::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double accuracy_of(std::int64_t correct, std::int64_t count) {
    return count > 0 ? static_cast<double>(correct) / static_cast<double>(count) : 0;
}

double accuracy_of(EvaluationSums const& sums) { return accuracy_of(sums.correct, sums.count); }

data::LoaderPlan loader_plan(RunState const& state, parallel::ReplicaRange replicas) {
    data::LoaderPlan plan;
    plan.seed = static_cast<std::uint64_t>(state.settings.seed);
    plan.num_replicas = static_cast<int>(state.settings.replicas);
    plan.batch_size = state.settings.batch_size;
    plan.tail = state.settings.tail == "pad" ? data::Tail::pad : data::Tail::exact;
    plan.first_replica = replicas.begin;
    plan.end_replica = replicas.end;
    plan.first_step = state.step;
    plan.end_step = end_step(state.settings, state.steps_per_epoch);
    return plan;
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
      saved_step_(parts.state.step) {
    if (options_.log_indices.empty()) return;
    parts_.communicator.agree([&] {
        if (!is_root()) return;
        indices_.open(options_.log_indices, std::ios::app);
        require(indices_.is_open(), ExitCode::do_not_requeue, "cannot write to {} (--log-indices)",
                options_.log_indices);
    });
}

Outcome Trainer::run() {
    RunState& state = parts_.state;
    std::int64_t const end = end_step(state.settings, state.steps_per_epoch);
    optim::StepSchedule const schedule{state.settings.lr, state.settings.lr_step_size,
                                       state.settings.lr_gamma};
    data::BatchLoader loader(parts_.train_set, normalization_, loader_plan(state, replicas_));
    report::ProgressBar bar(is_root() ? options_.progress : report::ProgressMode::never);

    while (state.step < end) {
        Clock::time_point const start = Clock::now();
        parts_.phases.enter(Phase::data, state.step);
        data::StepBatch const& batch = loader.next();
        double const lr = optim::learning_rate_at(schedule, state.epoch);
        StepResult const result = do_step(batch, lr, loader.last_wait_s());
        epoch_times_.seconds += seconds_since(start);
        epoch_times_.samples += result.samples;
        epoch_times_.data_wait_s += loader.last_wait_s();
        bar.update(progress());

        if (state.step % state.steps_per_epoch == 0) {
            bar.clear();
            finish_epoch();
        }
        bool const is_due = (options_.save_every_steps > 0 && state.step % options_.save_every_steps == 0) ||
                            (options_.save_every_epochs > 0 &&
                             state.step % (options_.save_every_epochs * state.steps_per_epoch) == 0);
        if (is_due || (result.stop_requested && state.step < end)) {
            bar.clear();
            collective_save();
        }
        if (result.stop_requested && state.step < end) return Outcome::stopped;
    }
    bar.clear();
    if (saved_step_ != state.step) collective_save();
    bool const is_evaluated = !state.history.empty() && state.history.back().step == state.step;
    double const accuracy =
        is_evaluated ? accuracy_of(state.history.back().test->correct, state.history.back().test->count)
                     : accuracy_of(collective_evaluate_state());
    log::info("{}", report::test_line(log_device, accuracy));
    return Outcome::finished;
}

StepResult Trainer::do_step(data::StepBatch const& batch, double lr, double data_wait_s) {
    RunState& state = parts_.state;
    bool const ask_to_stop =
        stop_signal() != 0 || (parts_.run_directory && parts_.run_directory->wants_drain());
    Clock::time_point const start = Clock::now();
    if (!options_.log_indices.empty()) collective_log_indices(batch);
    StepResult const result =
        parts_.training_step.run(batch, parts_.train_set.shape(), static_cast<float>(state.settings.momentum),
                                 static_cast<float>(lr), ask_to_stop);
    parts_.phases.enter(Phase::record, state.step);
    if (!result.is_finite)
        throw AgreedError(
            ExitCode::do_not_requeue,
            fmt::format(
                "step {}: loss or gradient is NaN or infinite (loss {}; going on would only spread it); the "
                "checkpoint of step {} is good; try a smaller --lr",
                state.step, result.loss, saved_step_));
    if (parts_.run_directory)
        parts_.run_directory->metrics().append(state.step, "step",
                                               {{"epoch", state.epoch},
                                                {"loss", result.loss},
                                                {"lr", lr},
                                                {"samples", result.samples},
                                                {"correct", result.correct},
                                                {"step_s", seconds_since(start) + data_wait_s},
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

void Trainer::finish_epoch() {
    RunState& state = parts_.state;
    EvaluationSums const test = collective_evaluate_state();
    optim::StepSchedule const schedule{state.settings.lr, state.settings.lr_step_size,
                                       state.settings.lr_gamma};
    report::EpochRow row;
    row.epoch = state.epoch - 1;
    row.step = state.step;
    row.learning_rate = optim::learning_rate_at(schedule, state.epoch);
    row.loss = state.open_epoch.loss_sum / static_cast<double>(state.open_epoch.count);
    row.train_count = state.open_epoch.count;
    row.train_correct = state.open_epoch.correct;
    row.test = report::TestResult{test.loss / static_cast<double>(test.count), test.count, test.correct};
    state.history.push_back(row);
    state.open_epoch = {};

    report::EpochSummary summary;
    summary.device = log_device;
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

EvaluationSums Trainer::collective_evaluate_state() {
    parts_.phases.enter(Phase::evaluate, parts_.state.step);
    return collective_evaluate(parts_.communicator, parts_.slots, parts_.test_set, normalization_,
                               parts_.state.settings.eval_batch_size);
}

void Trainer::collective_save() {
    parts_.phases.enter(Phase::save, parts_.state.step);
    // Rank 0 alone writes: its host's memory is the whole state, and no rank can change it before the next exchange, which
    // needs rank 0.
    parts_.communicator.agree([&] {
        if (!parts_.run_directory) return;
        StateTensors const& tensors = parts_.state.tensors;
        // Finite gradients can still overflow in the update itself.
        require(
            all_finite(tensors.parameters) && all_finite(tensors.momentum) && all_finite(tensors.statistics),
            ExitCode::do_not_requeue,
            "step {}: a parameter, momentum or running statistic is NaN or infinite (a checkpoint of it "
            "would "
            "be useless); the checkpoint of step {} is good; try a smaller --lr",
            parts_.state.step, saved_step_);
        parts_.run_directory->save(parts_.state);
    });
    saved_step_ = parts_.state.step;
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
