// SPDX-License-Identifier: Apache-2.0
#include "train/device_training_step.hpp"

#include <cassert>
#include <vector>

#include "train/replica_check.hpp"
#include "train/state_snapshot.hpp"
#include "train/torch_on_gpu.hpp"

namespace holdfast::train {

DeviceTrainingStep::DeviceTrainingStep(model::FlatLayout const& layout, ComputeDevice device,
                                       StateTensors const& on_device, StateTensors const& in_host,
                                       parallel::GradientExchange& exchange, ReplicaSlots& slots,
                                       int first_replica)
    : TrainingStep(layout, exchange, slots, first_replica),
      stream_(*device.stream),
      gpu_(device.gpu),
      layout_on_device_(device.layout),
      on_device_(on_device),
      in_host_(in_host),
      one_(1) {
    float const one = 1.0f;
    cuda::copy(one_.data(), &one, sizeof one, stream_);
    stream_.synchronize();
    for (std::size_t i = 0; i < 2 * num_moments; ++i) moments_.emplace_back(cuda::EventTime::kept);
}

void DeviceTrainingStep::mark(std::int64_t step, Moment moment) {
    moments_[place_of(step, moment)].record(stream_);
}

double DeviceTrainingStep::seconds_between(std::int64_t step, Moment first, Moment second) const {
    return moments_[place_of(step, second)].seconds_since(moments_[place_of(step, first)]);
}

void DeviceTrainingStep::copy_state(StateTensors const& to, StateTensors const& from) const {
    auto const sources = from.parts();
    auto const targets = to.parts();
    for (std::size_t i = 0; i < sources.size(); ++i) {
        std::span<float> const source = sources[i].second;
        cuda::copy(targets[i].second.data(), source.data(), source.size_bytes(), stream_);
    }
    stream_.synchronize();
}

StateTensors DeviceTrainingStep::copied(std::vector<float>& memory, StateTensors const& from) const {
    memory.resize(StateTensors::num_floats(layout(), from.averages()));
    StateTensors const copy = StateTensors::in(memory, layout(), from.averages());
    copy_state(copy, from);
    return copy;
}

void DeviceTrainingStep::load_state() {
    assert(!is_ahead());
    std::vector<float> memory;
    StateTensors const copy = copied(memory, in_host_);
    reorder_for_device(layout(), layout_on_device_, copy);
    copy_state(on_device_, copy);
}

void DeviceTrainingStep::fetch_state() {
    copy_state(in_host_, on_device_);
    reorder_for_host(layout(), layout_on_device_, in_host_);
}

std::string DeviceTrainingStep::state_digests() const {
    // Not through the host's copy: all ranks of the host share that one.
    std::vector<float> memory;
    return replica_digests(copied(memory, on_device_));
}

void DeviceTrainingStep::add(std::span<float> target, std::span<float const> source) {
    cuda::sum_in_order(target.data(), {target.data(), source.data()}, {{0, 1, -1}}, target.size(), stream_);
}

void DeviceTrainingStep::add_one(float* place) {
    cuda::sum_in_order(place, {place, one_.data()}, {{0, 1, -1}}, 1, stream_);
}

void DeviceTrainingStep::consume([[maybe_unused]] std::size_t offset, std::span<float const> sum,
                                 optim::SgdRates const& rates) {
    assert(offset == 0 && sum.size() == layout().num_floats);
    std::size_t const variances_offset = layout().variances_begin - layout().means_begin;
    cuda::sgd_step({on_device_.parameters.data(), on_device_.momentum.data(),
                    on_device_.has_averages() ? on_device_.average_parameters.data() : nullptr},
                   sum.data(), layout().means_begin, layout().decaying_end, rates, stream_);
    cuda::update_running_mean(on_device_.statistics.data(), sum.data() + layout().means_begin,
                              variances_offset, stream_);
    cuda::update_running_variance(on_device_.statistics.data() + variances_offset,
                                  sum.data() + layout().variances_begin,
                                  layout().tail_begin - layout().variances_begin, stream_);
    if (on_device_.has_averages())
        cuda::update_average(on_device_.average_statistics.data(), on_device_.statistics.data(),
                             layout().num_statistics_floats(), rates.average_weight, stream_);
    // Into pinned memory: the copy waits for nothing, and is done when the exchange is.
    cuda::copy(tail_.data(), sum.data() + layout().tail_begin, tail_.size() * sizeof(float), stream_);
}

std::span<float const> DeviceTrainingStep::read_tail() {
    if (gpu_ >= 0) require_memory_was_enough(gpu_);
    return {tail_.data(), tail_.size()};
}

}  // namespace holdfast::train
