// SPDX-License-Identifier: Apache-2.0
#include "train/state_snapshot.hpp"

#include <vector>

#include "model/channels_last.hpp"

namespace holdfast::train {

StateSnapshot::StateSnapshot(model::FlatLayout const& layout, ComputeDevice device,
                             std::span<float const> on_device)
    : layout_(layout),
      device_(device),
      on_device_(on_device),
      copy_(on_device.size()),
      arrived_(on_device.size()),
      in_host_(StateTensors::in({arrived_.data(), arrived_.size()}, layout)) {}

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
    if (device_.layout == Layout::nhwc)
        for (auto const part : per_parameter) {
            std::span<float> const values = in_host_.*part;
            std::vector<float> const as_on_device(values.begin(), values.end());
            model::from_channels_last(layout_, as_on_device, values);
        }
    return in_host_;
}

}  // namespace holdfast::train
