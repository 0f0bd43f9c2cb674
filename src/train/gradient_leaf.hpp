// SPDX-License-Identifier: Apache-2.0
// The leaf that one replica contributes to the reduction tree: gradients, batch statistics and the step's metrics, scaled by the
// replica's share of the samples and written into a gradient buffer. In host memory that is done piece by piece, as backward
// yields them. On a device they are first collected, unscaled, at a fixed place, so that forward and backward are the same work
// for every replica and step and can be replayed; `end` then scales and writes all of it, and what the exchange can take early as
// soon as backward has it. The bits are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "model/flat_layout.hpp"
#include "parallel/gradient_exchange.hpp"
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

/// Where a leaf goes: weight x values into `buffer`, of layout.num_floats.
struct LeafTarget {
    std::span<float> buffer;
    float weight = 1;
    GradientWrite write = GradientWrite::overwrite;
    /// Is told of the early parts. Null unless this is the last leaf of the rank's step.
    parallel::GradientExchange* exchange = nullptr;
};

class GradientLeaf {
  public:
    /// `early_parts` are those of the exchange: together the beginning of a leaf.
    GradientLeaf(model::FlatLayout const& layout, ComputeDevice device,
                 std::span<parallel::FloatRange const> early_parts = {});

    /// What follows goes there.
    void begin(LeafTarget const& target);
    /// Before the values of a pass, and part of the recorded work: a recording that fails has written some of them, and they come
    /// again.
    void begin_values();
    /// At buffer[offset]. `values` is dense float32, or on a device bfloat16, and nobody writes to it any more.
    void write(at::Tensor const& values, std::size_t offset);
    /// The metrics, after all values. `loss` and `num_correct` are scalars on the device, float32 and int64.
    void write_tail(at::Tensor const& loss, at::Tensor const& num_correct, std::int64_t num_samples);
    /// After the metrics; then the buffer holds the leaf.
    void end();
    /// In place of values, tail and end: what a replica without samples contributes, +0.0 everywhere.
    void write_nothing();

  private:
    struct EarlyPart {
        parallel::FloatRange range;
        std::size_t num_values = 0;  ///< of parameters in it; the rest is padding
        std::size_t num_missing = 0;
        cuda::Event is_collected{};
    };
    /// To its place in `collected_`, with others, when an early part is complete or the pass ends.
    void collect_later(at::Tensor const& values, std::size_t offset);
    void collect();
    void write_collected(parallel::FloatRange range, float weight, cuda::Stream const& stream);

    std::size_t tail_begin_;
    ComputeDevice device_;
    LeafTarget target_;
    bool all_finite_ = true;        ///< in host memory
    cuda::DeviceFloats collected_;  ///< in device memory: the leaf before it is scaled
    cuda::DeviceFloats one_;
    std::vector<cuda::LeafPiece> pieces_;       ///< to be collected
    std::vector<at::Tensor> sources_;           ///< their memory
    std::deque<EarlyPart> early_parts_;         ///< in the order of the exchange
    std::optional<cuda::Stream> early_stream_;  ///< beside the backward pass
};

}  // namespace holdfast::train
