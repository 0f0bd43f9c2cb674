// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/log.hpp"
#include "core/stop_request.hpp"
#include "optim/learning_rate.hpp"
#include "report/progress.hpp"
#include "train/evaluate.hpp"

namespace holdfast::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

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
        require(indices_.is_open(), ExitCode::do_not_requeue, "cannot write to {} (--log-indices)", options_.log_indices);
    });
}

Outcome Trainer::run() {
    RunState& state = parts_.state;
    std::int64_t const end = end_step(state.settings, state.steps_per_epoch);
    optim::StepSchedule const schedule{state.settings.lr, state.settings.lr_step_size, state.settings.lr_gamma};
    data::BatchLoader loader(parts_.train_set, normalization_, loader_plan(state, replicas_));
    report::Progress progress(is_root() && report::should_show_progress(options_.progress), state.step, end);

    while (state.step < end) {
        Clock::time_point const start = Clock::now();
        data::StepBatch const& batch = loader.next();
        double const lr = optim::learning_rate_at(schedule, state.epoch);
        StepResult const result = do_step(batch, lr, loader.last_wait_s());
        epoch_times_.seconds += seconds_since(start);
        epoch_times_.samples += result.samples;
        epoch_times_.data_wait_s += loader.last_wait_s();
        progress.update(state.step, result.samples);

        if (state.step % state.steps_per_epoch == 0) {
            progress.clear();
            finish_epoch(lr);
        }
        bool const is_due = (options_.save_every_steps > 0 && state.step % options_.save_every_steps == 0) ||
                            (options_.save_every_epochs > 0 &&
                             state.step % (options_.save_every_epochs * state.steps_per_epoch) == 0);
        if (is_due || (result.stop_requested && state.step < end)) {
            progress.clear();
            collective_save();
        }
        if (result.stop_requested && state.step < end) return Outcome::stopped;
    }
    progress.clear();
    if (saved_step_ != state.step) collective_save();
    bool const is_evaluated = !state.history.empty() && state.history.back().step == state.step;
    EvaluationSums sums;
    if (is_evaluated) {
        sums.correct = state.history.back().test_correct;
        sums.count = state.history.back().test_count;
    } else {
        sums = collective_evaluate_state();
    }
    log::info("{}", report::test_line(device_name(), sums.correct, sums.count));
    return Outcome::finished;
}

StepResult Trainer::do_step(data::StepBatch const& batch, double lr, double data_wait_s) {
    RunState& state = parts_.state;
    bool const ask_to_stop = stop_signal() != 0 || (parts_.run_directory && parts_.run_directory->wants_drain());
    Clock::time_point const start = Clock::now();
    if (!options_.log_indices.empty()) collective_log_indices(batch);
    StepResult const result = parts_.training_step.run(batch, parts_.train_set.shape(), static_cast<float>(state.settings.momentum),
                                                       static_cast<float>(lr), ask_to_stop);
    if (!result.is_finite)
        throw AgreedError(ExitCode::do_not_requeue,
                          fmt::format("step {}: loss or gradient is NaN or infinite (loss {}; going on would only spread it); the "
                                      "checkpoint of step {} is good; try a smaller --lr",
                                      state.step, result.loss, saved_step_));
    if (parts_.run_directory) {
        report::StepRow row;
        row.epoch = state.epoch;
        row.step = state.step;
        row.lr = lr;
        row.loss = result.loss;
        row.samples = result.samples;
        row.correct = result.correct;
        row.step_s = seconds_since(start) + data_wait_s;
        row.data_wait_s = data_wait_s;
        row.compute_s = result.compute_s;
        row.exchange_s = result.exchange_s;
        parts_.run_directory->metrics().write(row);
    }
    state.open_epoch.loss_sum += static_cast<double>(result.loss) * static_cast<double>(result.samples);
    state.open_epoch.count += result.samples;
    state.open_epoch.correct += result.correct;
    state.step += 1;
    state.epoch = state.step / state.steps_per_epoch;
    return result;
}

void Trainer::finish_epoch(double lr) {
    RunState& state = parts_.state;
    EvaluationSums const test = collective_evaluate_state();
    report::EpochRow row;
    row.epoch = state.epoch - 1;
    row.step = state.step;
    row.lr = lr;
    row.loss = state.open_epoch.loss_sum / static_cast<double>(state.open_epoch.count);
    row.train_count = state.open_epoch.count;
    row.train_correct = state.open_epoch.correct;
    row.test_loss = test.loss / static_cast<double>(test.count);
    row.test_count = test.count;
    row.test_correct = test.correct;
    state.history.push_back(row);
    state.open_epoch = {};

    optim::StepSchedule const schedule{state.settings.lr, state.settings.lr_step_size, state.settings.lr_gamma};
    log::info("{}", report::epoch_line(device_name(), row, state.settings.batch_size, state.steps_per_epoch,
                                       optim::learning_rate_at(schedule, state.epoch), epoch_times_));
    if (parts_.run_directory) parts_.run_directory->metrics().write(row);
    epoch_times_ = {};
}

EvaluationSums Trainer::collective_evaluate_state() {
    return collective_evaluate(parts_.communicator, parts_.slots, parts_.test_set, normalization_,
                               parts_.state.settings.eval_batch_size);
}

void Trainer::collective_save() {
    // Rank 0 alone writes: its host's memory is the whole state, and no rank can change it before the next exchange, which
    // needs rank 0.
    parts_.communicator.agree([&] {
        if (parts_.run_directory) parts_.run_directory->save(parts_.state);
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
    if (!is_root()) return;
    for (std::string const& rows : all) indices_ << rows;
    indices_.flush();
}

}  // namespace holdfast::train
