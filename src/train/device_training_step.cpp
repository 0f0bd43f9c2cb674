// SPDX-License-Identifier: Apache-2.0
#include "train/device_training_step.hpp"

#include <cassert>
#include <vector>

#include "train/replica_check.hpp"
#include "train/torch_on_gpu.hpp"

namespace holdfast::train {

DeviceTrainingStep::DeviceTrainingStep(model::FlatLayout const& layout, ComputeDevice device,
                                       StateTensors const& on_device, StateTensors const& in_host,
                                       parallel::GradientExchange& exchange, ReplicaSlots& slots,
                                       int first_replica)
    : TrainingStep(layout, exchange, slots, first_replica),
      stream_(*device.stream),
      gpu_(device.gpu),
      on_device_(on_device),
      in_host_(in_host),
      one_(1) {
    float const one = 1.0f;
    cuda::copy(one_.data(), &one, sizeof one, stream_);
    stream_.synchronize();
}

void DeviceTrainingStep::copy_state(StateTensors const& to, StateTensors const& from) const {
    for (auto const part : {&StateTensors::parameters, &StateTensors::momentum, &StateTensors::statistics})
        cuda::copy((to.*part).data(), (from.*part).data(), (from.*part).size_bytes(), stream_);
    stream_.synchronize();
}

std::string DeviceTrainingStep::state_digests() const {
    // Not through the host's copy: all ranks of the host share that one.
    std::vector<float> own(StateTensors::num_floats(layout()));
    StateTensors const copy = StateTensors::in(own, layout());
    copy_state(copy, on_device_);
    return replica_digests(copy);
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
    sum_of_tail_ = sum.data() + layout().tail_begin;
}

std::span<float const> DeviceTrainingStep::read_tail() {
    // Not among the work that consume queues: a copy to memory that is not pinned waits for the stream, and while the exchange
    // is under way only NcclExchange may wait, because it notices a lost peer.
    cuda::copy(tail_.data(), sum_of_tail_, sizeof tail_, stream_);
    stream_.synchronize();
    if (gpu_ >= 0) require_memory_was_enough(gpu_);
    return tail_;
}

}  // namespace holdfast::train
