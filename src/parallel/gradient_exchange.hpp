// SPDX-License-Identifier: Apache-2.0
// Sums the flat gradients of all replicas in the fixed tree of reduction_tree.hpp and hands the finished sum
// over, piece by piece. Every backend gives the same bits for any number of ranks and any split into hosts.
// It knows neither the optimizer nor torch: the caller passes what to do with a finished piece.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "parallel/communicator.hpp"
#include "parallel/reduction_tree.hpp"

namespace holdfast::cuda {
class Stream;
}

namespace holdfast::parallel {

/// Receives the finished sum of elements [offset, offset + sum.size()).
using Consume = std::function<void(std::size_t offset, std::span<float const> sum)>;

/// Elements [begin, end) of a leaf.
struct FloatRange {
    std::size_t begin = 0;
    std::size_t end = 0;
};

class GradientExchange {
  public:
    virtual ~GradientExchange() = default;

    /// What this rank runs into which buffer in every step.
    virtual BufferPlan const& plan() const = 0;
    /// Flat gradient of num_floats elements, in host memory (4096-byte aligned) or device memory.
    virtual std::span<float> buffer(int index) = 0;
    /// Collective. Called when the plan's actions are done on this rank. On return every element of the sum
    /// has been consumed exactly once on each host, by one of its ranks (or on every rank, where ranks share
    /// nothing), and what the consumers wrote into host-shared memory is visible to all ranks of the host;
    /// buffers may be written again. In device memory all of this is queued on return, and done after wait().
    virtual void reduce(Consume const& consume) = 0;
    /// Between a reduce() and the next. What was queued behind the reduce(), as the next step's gradients, is
    /// not waited for.
    virtual void wait() {}

    /// Parts of a leaf that can be exchanged while the others are still computed, in this order.
    virtual std::span<FloatRange const> early_parts() const { return {}; }
    /// In `stream` is queued what gives the next of early_parts() its final value, in the leaf of this step's
    /// last replica of this rank. A rank need not tell; then reduce() begins with all parts.
    virtual void early_part_written(cuda::Stream const& /*stream*/) {}

    /// What went wrong behind the back of the thread that calls reduce(), in words that last; null if nothing. Any
    /// thread may ask, at any time; asking allocates nothing.
    virtual char const* trouble() const { return nullptr; }
    /// From now on `tell` learns whether this rank, in reduce(), has done its part and waits for the others.
    /// Not called where nothing is known but that the rank is in reduce().
    void tell_when_waiting(std::function<void(bool is_waiting)> tell) { tell_waiting_ = std::move(tell); }
    virtual std::string name() const = 0;

  protected:
    void tell_waiting(bool is_waiting) const {
        if (tell_waiting_) tell_waiting_(is_waiting);
    }

  private:
    std::function<void(bool)> tell_waiting_;
};

enum class Reduction {
    exact,  ///< in the tree: the same bits on any number of ranks
    fast,   ///< in NCCL's own order
};

struct ExchangeConfig {
    int num_replicas = 1;
    std::size_t num_floats = 0;  ///< a multiple of 16
    int slots = 1;  ///< replicas this rank runs at the same time; must be the same pure function on all ranks
    Reduction reduction = Reduction::exact;  ///< of gradients in device memory; in host memory always exact
    cuda::Stream const* device_stream =
        nullptr;  ///< of the device that holds the gradients; null: host memory
    /// early_parts() lie in [0, num_early_floats): a backward pass that fills this range from its end has them
    /// long before the rest.
    std::size_t num_early_floats = 0;
};

/// Collective. NcclExchange in device memory; in host memory SharedMemoryExchange on one host, MpiExchange on
/// several.
std::unique_ptr<GradientExchange> collective_make_exchange(Communicator const& communicator,
                                                           ExchangeConfig const& config);

}  // namespace holdfast::parallel
