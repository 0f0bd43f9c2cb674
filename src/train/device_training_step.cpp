// SPDX-License-Identifier: Apache-2.0
#include "train/device_training_step.hpp"

#include <cassert>
#include <vector>

#include "model/channels_last.hpp"
#include "train/replica_check.hpp"
#include "train/torch_on_gpu.hpp"

namespace holdfast::train {
namespace {

void queue_copy(std::span<float> to, std::span<float const> from, cuda::Stream const& stream) {
    assert(to.size() == from.size());
    cuda::copy(to.data(), from.data(), from.size_bytes(), stream);
}

}  // namespace

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
}

void DeviceTrainingStep::load_state() {
    std::vector<float> reordered(layout_on_device_ == Layout::nhwc ? layout().num_parameter_floats() : 0);
    for (auto const part : per_parameter) {
        if (layout_on_device_ == Layout::nhwc) model::to_channels_last(layout(), in_host_.*part, reordered);
        queue_copy(on_device_.*part, reordered.empty() ? in_host_.*part : reordered, stream_);
        stream_.synchronize();
    }
    queue_copy(on_device_.statistics, in_host_.statistics, stream_);
    stream_.synchronize();
}

void DeviceTrainingStep::fetch_state() {
    std::vector<float> reordered(layout_on_device_ == Layout::nhwc ? layout().num_parameter_floats() : 0);
    for (auto const part : per_parameter) {
        queue_copy(reordered.empty() ? in_host_.*part : reordered, on_device_.*part, stream_);
        stream_.synchronize();
        if (layout_on_device_ == Layout::nhwc) model::from_channels_last(layout(), reordered, in_host_.*part);
    }
    queue_copy(in_host_.statistics, on_device_.statistics, stream_);
    stream_.synchronize();
}

std::string DeviceTrainingStep::state_digests() const {
    // Not through the host's copy: all ranks of the host share that one.
    std::vector<float> memory(StateTensors::num_floats(layout()));
    StateTensors const own = StateTensors::in(memory, layout());
    for (auto const part : per_parameter) queue_copy(own.*part, on_device_.*part, stream_);
    queue_copy(own.statistics, on_device_.statistics, stream_);
    stream_.synchronize();
    return replica_digests(own);
}

void DeviceTrainingStep::add(std::span<float> target, std::span<float const> source) {
    cuda::sum_in_order(target.data(), {target.data(), source.data()}, {{0, 1, -1}}, target.size(), stream_);
}

void DeviceTrainingStep::add_one(float* place) {
    cuda::sum_in_order(place, {place, one_.data()}, {{0, 1, -1}}, 1, stream_);
}

void DeviceTrainingStep::consume([[maybe_unused]] std::size_t offset, std::span<float const> sum,
                                 float momentum, float lr) {
    assert(offset == 0 && sum.size() == layout().num_floats);
    std::size_t const variances_offset = layout().variances_begin - layout().means_begin;
    cuda::sgd_step(on_device_.parameters.data(), on_device_.momentum.data(), sum.data(), layout().means_begin,
                   momentum, lr, stream_);
    cuda::update_running_mean(on_device_.statistics.data(), sum.data() + layout().means_begin,
                              variances_offset, stream_);
    cuda::update_running_variance(on_device_.statistics.data() + variances_offset,
                                  sum.data() + layout().variances_begin,
                                  layout().tail_begin - layout().variances_begin, stream_);
    // Into pinned memory: the copy waits for nothing, and is done when the exchange is.
    cuda::copy(tail_.data(), sum.data() + layout().tail_begin, tail_.size() * sizeof(float), stream_);
}

std::span<float const> DeviceTrainingStep::read_tail() {
    if (gpu_ >= 0) require_memory_was_enough(gpu_);
    return {tail_.data(), tail_.size()};
}

}  // namespace holdfast::train
