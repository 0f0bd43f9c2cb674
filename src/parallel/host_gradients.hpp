// SPDX-License-Identifier: Apache-2.0
// The gradient buffers of all ranks of one host, in shared memory, with the plans of all ranks of the launch.
// What the exchange backends for CPU memory have in common.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "parallel/communicator.hpp"
#include "parallel/gradient_exchange.hpp"
#include "parallel/host_barrier.hpp"
#include "parallel/host_shared_memory.hpp"
#include "parallel/reduction_tree.hpp"

namespace holdfast::parallel {

/// Collective. What every rank of the launch does, by rank, the same on all of them. Throws if they mean
/// different gradients.
std::vector<BufferPlan> collective_plans(Communicator const& communicator, ExchangeConfig const& config);

class HostGradients {
  public:
    /// Collective.
    HostGradients(Communicator const& communicator, ExchangeConfig const& config);

    BufferPlan const& plan() const { return plans_[static_cast<std::size_t>(rank_)]; }
    std::span<float> buffer(int index) const;
    HostBarrier const& barrier() const { return barrier_; }

    /// The partial sums of all ranks of this host, ascending, and where they lie.
    std::vector<ReplicaRange> const& partial_sums() const { return partial_sums_; }
    float const* partial_sum_data(std::size_t index) const { return partial_sum_data_[index]; }

  private:
    std::span<float> buffer_of(int rank, int index) const;

    int rank_;
    int first_rank_;  ///< of this host
    std::size_t num_floats_;
    std::size_t buffer_stride_floats_;
    std::vector<BufferPlan> plans_;          ///< by rank of the launch
    std::vector<std::size_t> first_buffer_;  ///< by local rank
    std::vector<ReplicaRange> partial_sums_;
    std::vector<float const*> partial_sum_data_;
    HostSharedMemory memory_;
    HostBarrier barrier_;
};

/// Elements [begin, end) of part `index` when num_floats elements are cut into num_parts, at cache lines.
struct ElementRange {
    std::size_t begin = 0;
    std::size_t end = 0;
};
ElementRange element_chunk(std::size_t num_floats, int index, int num_parts);

}  // namespace holdfast::parallel
