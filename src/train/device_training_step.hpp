// SPDX-License-Identifier: Apache-2.0
// The step of a rank whose state lies in its device's memory, in the device's layout. Everything is queued in one stream: nothing
// comes to the host but the sixteen floats of the tail, and the state itself when it is saved.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "train/compute_device.hpp"
#include "train/training_step.hpp"

namespace holdfast::train {

class DeviceTrainingStep : public TrainingStep {
  public:
    /// `on_device` and `in_host` are the whole state twice; the exchange gives sums in device memory, in `device`'s stream.
    DeviceTrainingStep(model::FlatLayout const& layout, ComputeDevice device, StateTensors const& on_device,
                       StateTensors const& in_host, parallel::GradientExchange& exchange, ReplicaSlots& slots,
                       int first_replica);

    void load_state() override;
    void fetch_state() override;
    std::string state_digests() const override;

  private:
    bool queues_work() const override { return true; }
    void mark(std::int64_t step, Moment moment) override;
    double seconds_between(std::int64_t step, Moment first, Moment second) const override;
    static std::size_t place_of(std::int64_t step, Moment moment) {
        return static_cast<std::size_t>(step % 2) * num_moments + moment;
    }
    void copy_state(StateTensors const& to, StateTensors const& from) const;
    /// All that `from` holds, in host memory and in its order.
    StateTensors copied(std::vector<float>& memory, StateTensors const& from) const;
    void add(std::span<float> target, std::span<float const> source) override;
    void add_one(float* place) override;
    void consume(std::size_t offset, std::span<float const> sum, optim::SgdRates const& rates) override;
    std::span<float const> read_tail() override;

    cuda::Stream const& stream_;
    int gpu_;
    Layout layout_on_device_;
    StateTensors on_device_;
    StateTensors in_host_;
    cuda::DeviceFloats one_;
    cuda::PinnedFloats tail_{model::FlatLayout::tail_size};
    std::deque<cuda::Event> moments_;  ///< of two steps: one begins before the times of the other are read
};

}  // namespace holdfast::train
