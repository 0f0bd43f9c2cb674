// SPDX-License-Identifier: Apache-2.0
// The leaf that one replica contributes to the reduction tree: gradients, batch statistics and the step's metrics, scaled by the
// replica's share of the samples and written into a gradient buffer. In host memory that is done piece by piece, as backward
// yields them. On a device they are first collected, unscaled, at a fixed place, so that forward and backward are the same work
// for every replica and step and can be replayed; `end` then scales and writes all of it. The bits are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/flat_layout.hpp"
#include "train/compute_device.hpp"

namespace at {
class Tensor;
}

namespace holdfast::train {

/// Where the tail of a gradient buffer (FlatLayout::tail_begin) carries what. All are summed over the replicas.
enum Tail : std::size_t {
    tail_loss = 0,  ///< mean loss of the replica, weighted as its gradient
    tail_correct,
    tail_count,
    tail_not_finite,  ///< replicas with a NaN or infinity in loss or gradient
    tail_stop,        ///< ranks that were asked to stop
};

enum class GradientWrite {
    overwrite,
    add,  ///< to what the buffer holds: this replica is the right sibling in the reduction tree
};

class GradientLeaf {
  public:
    GradientLeaf(model::FlatLayout const& layout, ComputeDevice device);

    /// What follows goes into `buffer`, of layout.num_floats, as weight x values.
    void begin(std::span<float> buffer, float weight, GradientWrite write);
    /// At buffer[offset]. `values` is dense float32 on the device.
    void write(at::Tensor const& values, std::size_t offset);
    /// The metrics, after all values. `loss` and `num_correct` are scalars on the device, float32 and int64.
    void write_tail(at::Tensor const& loss, at::Tensor const& num_correct, std::int64_t num_samples);
    /// After the metrics; then the buffer holds the leaf.
    void end();
    /// In place of values, tail and end: what a replica without samples contributes, +0.0 everywhere.
    void write_nothing();

  private:
    std::size_t tail_begin_;
    ComputeDevice device_;
    std::span<float> buffer_;
    float weight_ = 1;
    GradientWrite write_ = GradientWrite::overwrite;
    bool all_finite_ = true;        ///< in host memory
    cuda::DeviceFloats collected_;  ///< in device memory: the leaf before it is scaled
    cuda::DeviceFloats one_;
};

}  // namespace holdfast::train
