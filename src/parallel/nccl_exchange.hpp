// SPDX-License-Identifier: Apache-2.0
// The exchange between GPUs. exact: NCCL only moves bytes, each rank finishes the tree on its chunk with our
// own kernel, and the finished chunks are gathered. fast: NCCL adds, in an order of its own, so the bits
// depend on the number of ranks. Every rank consumes the whole sum, in device memory.
//
// It goes bucket by bucket in a stream of its own, so that buckets travel while the backward pass still fills
// others (docs/decisions/013-exchange-between-gpus.md). Memory and arithmetic are those of cuda/device_runtime.hpp, so the
// same code runs without a GPU on that one's host implementation and the stand-in libnccl of tests/support.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device_runtime.hpp"
#include "parallel/gradient_exchange.hpp"
#include "parallel/nccl_communicator.hpp"

namespace holdfast::parallel {

class NcclExchange : public GradientExchange {
  public:
    /// 25 MiB: what PyTorch's DistributedDataParallel exchanges at once (bucket_cap_mb).
    static constexpr std::size_t default_bucket_floats = (std::size_t{25} << 20) / sizeof(float);

    /// Collective. cuda::use_device came before. The gradients are written in `stream`.
    NcclExchange(Communicator const& communicator, ExchangeConfig const& config, cuda::Stream const& stream,
                 std::size_t bucket_floats = default_bucket_floats);

    BufferPlan const& plan() const override { return plan_; }
    /// In device memory.
    std::span<float> buffer(int index) override;
    std::span<FloatRange const> early_parts() const override { return early_parts_; }
    void early_part_written(cuda::Stream const& stream) override;
    /// `consume` gets device memory and queues its work in the stream. No MPI call meanwhile.
    void reduce(Consume const& consume) override;
    /// Throws Error(retry) when NCCL reports that a peer or the network is lost.
    void wait() override;
    char const* trouble() const override { return nccl_ ? nccl_->trouble() : nullptr; }
    std::string name() const override { return reduction_ == Reduction::exact ? "NCCL" : "NCCL, fast"; }

  private:
    struct Bucket {
        std::size_t begin = 0;
        std::size_t size = 0;  ///< a multiple of 16 * ranks
    };
    /// What lies where in the memory of a rank, in floats; the same on all of them.
    struct MemoryPlan {
        std::size_t num_floats = 0;  ///< of a gradient, with what fills its last bucket
        std::size_t received_begin = 0;
        std::size_t buffers_begin = 0;
        std::size_t size = 0;
    };

    void make_buckets(std::size_t bucket_floats, std::size_t num_early_floats);
    MemoryPlan memory_plan(std::vector<BufferPlan> const& plans) const;
    /// Whether one buffer holds the sum when the last replica is done: nothing is to be exchanged.
    bool is_alone() const { return num_ranks_ == 1 && plan_.partial_sums.size() == 1; }
    float* sum() const {
        return is_alone() ? buffer_data(plan_.partial_sums.front().buffer) : memory_.data();
    }
    float* buffer_data(int index) const;
    /// Queues the exchange of the next bucket in order, behind what `stream` does now.
    void begin_next_bucket(cuda::Stream const& stream);
    void add_last_siblings(Bucket const& bucket);
    void gather_exact_sum(Bucket const& bucket);
    void gather_fast_sum(Bucket const& bucket);

    int rank_;
    int num_ranks_;
    Reduction reduction_;
    std::size_t num_floats_;
    BufferPlan plan_;
    std::vector<BufferPlan::Action>
        last_adds_;                        ///< of the plan, after the last replica: done bucket by bucket
    std::vector<int> num_nodes_;           ///< by rank: partial sums it sends to each owner of a chunk
    cuda::SumOrder order_;                 ///< sources are all ranks' partial sums, ascending
    std::vector<Bucket> buckets_;          ///< in the order in which all ranks exchange them
    std::vector<FloatRange> early_parts_;  ///< the first of these, unless the rank is alone
    std::size_t next_bucket_ = 0;
    cuda::Stream const& stream_;
    MemoryPlan memory_plan_;
    std::unique_ptr<NcclCommunicator> nccl_;  ///< null if the rank is alone
    NcclFloats memory_;
    cuda::Stream exchange_stream_{cuda::StreamPriority::high};
    cuda::Event bucket_is_written_;
    cuda::Event gradient_is_written_;
    cuda::Event exchanged_;
    cuda::Event done_;
};

}  // namespace holdfast::parallel
