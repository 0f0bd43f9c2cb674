// SPDX-License-Identifier: Apache-2.0
#include "train/training_step.hpp"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

#include "optim/moving_average.hpp"
#include "optim/running_statistics.hpp"
#include "train/replica_check.hpp"

namespace holdfast::train {
namespace {

/// Calls action(begin, part) with the part of [offset, offset + sum.size()) that lies in [begin, end).
template <typename Action>
void in_range(std::size_t offset, std::span<float const> sum, std::size_t begin, std::size_t end,
              Action action) {
    std::size_t const from = std::max(offset, begin);
    std::size_t const to = std::min(offset + sum.size(), end);
    if (from < to) action(from - begin, sum.subspan(from - offset, to - from));
}

}  // namespace

TrainingStep::TrainingStep(model::FlatLayout const& layout, parallel::GradientExchange& exchange,
                           ReplicaSlots& slots, int first_replica)
    : layout_(layout), exchange_(exchange), slots_(slots), first_replica_(first_replica) {}

StepResult TrainingStep::run(data::StepBatch const& batch, data::ImageShape shape,
                             optim::SgdRates const& rates, bool ask_to_stop, LookAhead const& look_ahead) {
    std::int64_t const step = batch.step;  // the batch is gone after look_ahead
    if (trouble_ahead_) std::rethrow_exception(std::exchange(trouble_ahead_, nullptr));
    if (!std::exchange(is_ahead_, false)) compute(batch, shape);
    mark(step, exchange_begun);
    if (ask_to_stop) {
        int const own_buffer = exchange_.plan().partial_sums.front().buffer;
        add_one(exchange_.buffer(own_buffer).data() + layout_.tail_begin + tail_stop);
    }

    phases_->enter(Phase::exchange, step);
    {
        PiecewiseSpan update(phases_->trace(), {"update", PhaseTrace::steps, step});
        exchange_.reduce([&](std::size_t offset, std::span<float const> sum) {
            update.begin_piece();
            consume(offset, sum, rates);
            update.end_piece();
        });
    }
    mark(step, updated);
    if (look_ahead && queues_work()) {
        compute_ahead(look_ahead, shape);
        phases_->enter(Phase::exchange, step);
    }
    exchange_.wait();

    StepResult result;
    std::span<float const> const sums = read_tail();
    result.loss = sums[tail_loss];
    result.samples = static_cast<std::int64_t>(sums[tail_count]);
    result.correct = static_cast<std::int64_t>(sums[tail_correct]);
    result.is_finite = sums[tail_not_finite] == 0.0f;
    result.stop_requested = sums[tail_stop] != 0.0f;
    result.compute_s = seconds_between(step, begun, computed);
    result.exchange_s = seconds_between(step, exchange_begun, updated);
    if (result.stop_requested) drop_what_is_ahead();
    return result;
}

void TrainingStep::compute_ahead(LookAhead const& look_ahead, data::ImageShape shape) {
    data::StepBatch const* next = nullptr;
    try {
        next = look_ahead();
        if (next == nullptr) return;
    } catch (...) {
        trouble_ahead_ = std::current_exception();
    }
    is_ahead_ = true;  // in trouble too: other ranks are
    if (next != nullptr) compute(*next, shape);
}

void TrainingStep::drop_what_is_ahead() {
    trouble_ahead_ = nullptr;
    if (!std::exchange(is_ahead_, false)) return;
    exchange_.reduce([](std::size_t, std::span<float const>) {});
    exchange_.wait();
}

void TrainingStep::compute(data::StepBatch const& batch, data::ImageShape shape) {
    using Kind = parallel::BufferPlan::Kind;
    phases_->enter(Phase::compute, batch.step);
    mark(batch.step, begun);
    auto const& actions = exchange_.plan().actions;
    auto const last_run = std::find_if(actions.rbegin(), actions.rend(), [](auto const& action) {
        return action.kind == Kind::run || action.kind == Kind::run_and_add;
    });
    int next_slot = 0;
    for (parallel::BufferPlan::Action const& action : actions) {
        if (action.kind == Kind::end_of_wave) {
            slots_.wait();
            phases_->enter(Phase::compute, batch.step);
            next_slot = 0;
        } else if (action.kind == Kind::add) {
            add(exchange_.buffer(action.buffer), exchange_.buffer(action.from_buffer));
        } else {
            data::ReplicaBatch const& mine =
                batch.replicas[static_cast<std::size_t>(action.replica - first_replica_)];
            float const weight = static_cast<float>(static_cast<double>(mine.samples.size()) /
                                                    static_cast<double>(batch.global_samples));
            LeafTarget const target{
                exchange_.buffer(action.buffer), weight,
                action.kind == Kind::run_and_add ? GradientWrite::add : GradientWrite::overwrite,
                &action == &*last_run ? &exchange_ : nullptr};
            PhaseTrace::Span const span{"replica",     PhaseTrace::slots + next_slot, batch.step, {}, {},
                                        action.replica};
            slots_.start(next_slot++,
                         [&mine, shape, target, span, trace = phases_->trace()](Replica& replica) {
                             ScopedSpan const scope(trace, span);
                             replica.train(mine, shape, target);
                         });
        }
    }
    mark(batch.step, computed);
}

void HostTrainingStep::mark(std::int64_t, Moment moment) {
    moments_[moment] = std::chrono::steady_clock::now();
}

double HostTrainingStep::seconds_between(std::int64_t, Moment first, Moment second) const {
    return std::chrono::duration<double>(moments_[second] - moments_[first]).count();
}

std::string HostTrainingStep::state_digests() const { return replica_digests(tensors_); }

HostTrainingStep::HostTrainingStep(model::FlatLayout const& layout, StateTensors const& tensors,
                                   std::span<float> tail, parallel::GradientExchange& exchange,
                                   ReplicaSlots& slots, int first_replica)
    : TrainingStep(layout, exchange, slots, first_replica), tensors_(tensors), tail_(tail) {
    assert(tail.size() == model::FlatLayout::tail_size);
}

void HostTrainingStep::add(std::span<float> target, std::span<float const> source) {
    float* const __restrict t = target.data();
    float const* const __restrict s = source.data();
    for (std::size_t i = 0; i < target.size(); ++i) t[i] += s[i];
}

void HostTrainingStep::consume(std::size_t offset, std::span<float const> sum, optim::SgdRates const& rates) {
    auto const part = [](std::span<float> tensor, std::size_t begin, std::size_t size) {
        return tensor.empty() ? tensor : tensor.subspan(begin, size);
    };
    in_range(offset, sum, 0, layout().means_begin, [&](std::size_t begin, std::span<float const> gradient) {
        std::size_t const size = gradient.size();
        std::size_t const num_decaying = std::max(layout().decaying_end, begin) - begin;
        optim::sgd_step({part(tensors_.parameters, begin, size), part(tensors_.momentum, begin, size),
                         part(tensors_.average_parameters, begin, size)},
                        gradient, num_decaying, rates);
    });
    in_range(offset, sum, layout().means_begin, layout().variances_begin,
             [&](std::size_t begin, std::span<float const> means) {
                 optim::update_running_mean(tensors_.statistics.subspan(begin, means.size()), means);
             });
    in_range(offset, sum, layout().variances_begin, layout().tail_begin,
             [&](std::size_t begin, std::span<float const> variances) {
                 std::size_t const variances_offset = layout().variances_begin - layout().means_begin;
                 optim::update_running_variance(
                     tensors_.statistics.subspan(variances_offset + begin, variances.size()), variances);
             });
    in_range(offset, sum, layout().means_begin, layout().tail_begin,
             [&](std::size_t begin, std::span<float const> statistics) {
                 if (!tensors_.has_averages()) return;
                 std::size_t const size = statistics.size();
                 optim::update_average(tensors_.average_statistics.subspan(begin, size),
                                       tensors_.statistics.subspan(begin, size), rates.average_weight);
             });
    in_range(offset, sum, layout().tail_begin, layout().num_floats,
             [&](std::size_t begin, std::span<float const> tail) {
                 std::copy(tail.begin(), tail.end(), tail_.begin() + static_cast<std::ptrdiff_t>(begin));
             });
}

}  // namespace holdfast::train
