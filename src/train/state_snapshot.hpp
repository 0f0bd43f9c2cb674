// SPDX-License-Identifier: Apache-2.0
// The state of one step, copied out of a device's memory while the next steps run. Their stream pays only for a copy within the
// device, which is fast; from there the state goes to pinned host memory in a stream of its own.
#pragma once

#include <span>

#include "train/compute_device.hpp"
#include "train/run_state.hpp"

namespace holdfast::train {

/// Reorders a copy of a state in host memory, in place: from the order that a device of that layout has it in to that of host memory,
/// and back.
void reorder_for_host(model::FlatLayout const& layout, Layout of_device, StateTensors const& copy);
void reorder_for_device(model::FlatLayout const& layout, Layout of_device, StateTensors const& copy);

class StateSnapshot {
  public:
    /// `on_device`: the state that the steps change, StateTensors::num_floats(layout, averages). Takes as much memory again on the
    /// device and in the host.
    StateSnapshot(model::FlatLayout const& layout, Averages averages, ComputeDevice device,
                  std::span<float const> on_device);

    /// Queues the copy of the state as the work in the device's stream will leave it. What is queued there later may change the
    /// state. wait() for the copy before must have returned.
    void start();
    /// The state, once it is in host memory, in its order there; valid until the next start. Once for each start, in any thread.
    StateTensors const& wait();

  private:
    model::FlatLayout const& layout_;
    ComputeDevice device_;
    std::span<float const> on_device_;
    cuda::DeviceFloats copy_;
    cuda::PinnedFloats arrived_;
    StateTensors in_host_;
    cuda::Event is_copied_;
    cuda::Event is_arrived_;
    cuda::Stream stream_;
};

}  // namespace holdfast::train
