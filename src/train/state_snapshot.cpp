// SPDX-License-Identifier: Apache-2.0
#include "train/state_snapshot.hpp"

namespace holdfast::train {

StateSnapshot::StateSnapshot(model::FlatLayout const& layout, ComputeDevice device,
                             std::span<float const> on_device)
    : gpu_(device.gpu),
      steps_(*device.stream),
      on_device_(on_device),
      copy_(on_device.size()),
      arrived_(on_device.size()),
      in_host_(StateTensors::in({arrived_.data(), arrived_.size()}, layout)) {}

void StateSnapshot::start() {
    cuda::copy(copy_.data(), on_device_.data(), on_device_.size_bytes(), steps_);
    is_copied_.record(steps_);
    is_copied_.make_wait(stream_);
    cuda::copy(arrived_.data(), copy_.data(), on_device_.size_bytes(), stream_);
    is_arrived_.record(stream_);
}

StateTensors const& StateSnapshot::wait() const {
    cuda::use_device(gpu_);
    is_arrived_.synchronize();
    return in_host_;
}

}  // namespace holdfast::train
