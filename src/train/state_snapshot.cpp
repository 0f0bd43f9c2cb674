// SPDX-License-Identifier: Apache-2.0
#include "train/state_snapshot.hpp"

#include <vector>

#include "model/channels_last.hpp"

namespace holdfast::train {
namespace {

void reorder(model::FlatLayout const& layout, Layout of_device, StateTensors const& copy,
             void (*convert)(model::FlatLayout const&, std::span<float const>, std::span<float>)) {
    if (of_device == Layout::nchw) return;
    for (std::span<float> const values : copy.per_parameter()) {
        std::vector<float> const before(values.begin(), values.end());
        convert(layout, before, values);
    }
}

}  // namespace

void reorder_for_host(model::FlatLayout const& layout, Layout of_device, StateTensors const& copy) {
    reorder(layout, of_device, copy, model::from_channels_last);
}

void reorder_for_device(model::FlatLayout const& layout, Layout of_device, StateTensors const& copy) {
    reorder(layout, of_device, copy, model::to_channels_last);
}

StateSnapshot::StateSnapshot(model::FlatLayout const& layout, Averages averages, ComputeDevice device,
                             std::span<float const> on_device)
    : layout_(layout),
      device_(device),
      on_device_(on_device),
      copy_(on_device.size()),
      arrived_(on_device.size()),
      in_host_(StateTensors::in({arrived_.data(), arrived_.size()}, layout, averages)) {}

void StateSnapshot::start() {
    cuda::copy(copy_.data(), on_device_.data(), on_device_.size_bytes(), *device_.stream);
    is_copied_.record(*device_.stream);
    is_copied_.make_wait(stream_);
    cuda::copy(arrived_.data(), copy_.data(), on_device_.size_bytes(), stream_);
    is_arrived_.record(stream_);
}

StateTensors const& StateSnapshot::wait() {
    cuda::use_device(device_.gpu);
    is_arrived_.synchronize();
    reorder_for_host(layout_, device_.layout, in_host_);
    return in_host_;
}

}  // namespace holdfast::train
