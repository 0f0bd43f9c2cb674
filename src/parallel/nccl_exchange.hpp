// SPDX-License-Identifier: Apache-2.0
// The exchange between GPUs. exact: NCCL only moves bytes, each rank finishes the tree on its chunk with our
// own kernel, and the finished chunks are gathered. fast: NCCL adds, in an order of its own, so the bits
// depend on the number of ranks. Every rank consumes the whole sum, in device memory. Built only with
// HOLDFAST_WITH_CUDA.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device_runtime.hpp"
#include "parallel/gradient_exchange.hpp"

namespace holdfast::parallel {

enum class Reduction { exact, fast };

struct NcclVersions {
    std::string compiled;  ///< of nccl.h
    std::string loaded;  ///< of libnccl.so: another one than LibTorch's would be a second NCCL in the process
};
NcclVersions nccl_versions();

class NcclExchange : public GradientExchange {
  public:
    /// Collective. cuda::use_device came before. MPI carries NCCL's id; NCCL may replace signal handlers, so
    /// the stop handlers are installed again.
    NcclExchange(Communicator const& communicator, ExchangeConfig const& config, Reduction reduction);
    ~NcclExchange() override;

    BufferPlan const& plan() const override { return plan_; }
    /// In device memory.
    std::span<float> buffer(int index) override;
    /// `consume` gets device memory and queues its work on stream(); all of it is done on return. No MPI call
    /// meanwhile.
    void reduce(Consume const& consume) override;
    std::string name() const override { return reduction_ == Reduction::exact ? "NCCL" : "NCCL, fast"; }
    cuda::Stream const& stream() const { return stream_; }

  private:
    struct Handle;  ///< the NCCL communicator

    void gather_exact_sum();
    void gather_fast_sum();

    int rank_;
    int num_ranks_;
    Reduction reduction_;
    std::size_t num_floats_;
    std::size_t chunk_floats_;
    BufferPlan plan_;
    std::vector<int> num_nodes_;  ///< by rank: partial sums it sends to each owner of a chunk
    cuda::SumOrder order_;        ///< sources are all ranks' partial sums, ascending
    cuda::Stream stream_;
    std::vector<cuda::DeviceFloats> buffers_;
    cuda::DeviceFloats received_;
    cuda::DeviceFloats sum_;
    std::unique_ptr<Handle> nccl_;
};

}  // namespace holdfast::parallel
