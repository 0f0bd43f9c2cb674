// SPDX-License-Identifier: Apache-2.0
// The exchange between GPUs. exact: NCCL only moves bytes, each rank finishes the tree on its chunk with our
// own kernel, and the finished chunks are gathered. fast: NCCL adds, in an order of its own, so the bits
// depend on the number of ranks. Every rank consumes the whole sum, in device memory. libnccl is loaded when
// it is first used; memory and arithmetic are those of cuda/device_runtime.hpp, so the same code runs without
// a GPU on that one's host implementation and the stand-in libnccl of tests/support.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device_runtime.hpp"
#include "parallel/gradient_exchange.hpp"

namespace holdfast::parallel {

struct NcclVersions {
    std::string compiled;  ///< of nccl.h
    std::string loaded;    ///< of libnccl.so
};
/// Loads libnccl. Throws Error(do_not_requeue) if there is none.
NcclVersions nccl_versions();
/// Throws Error(do_not_requeue) unless the two are one version.
void require_nccl_as_built();

class NcclExchange : public GradientExchange {
  public:
    /// Collective. cuda::use_device came before; all work is queued in `stream`. MPI carries NCCL's id; NCCL
    /// may replace signal handlers, so the stop handlers are installed again.
    NcclExchange(Communicator const& communicator, ExchangeConfig const& config, cuda::Stream const& stream);
    ~NcclExchange() override;

    BufferPlan const& plan() const override { return plan_; }
    /// In device memory.
    std::span<float> buffer(int index) override;
    /// `consume` gets device memory and queues its work in the stream; all of it is done on return. No MPI
    /// call meanwhile. Throws Error(retry) when NCCL reports that a peer or the network is lost.
    void reduce(Consume const& consume) override;
    std::string name() const override { return reduction_ == Reduction::exact ? "NCCL" : "NCCL, fast"; }

  private:
    struct Handle;  ///< the NCCL communicator

    void gather_exact_sum();
    void gather_fast_sum();
    void wait();

    int rank_;
    int num_ranks_;
    Reduction reduction_;
    std::size_t num_floats_;
    std::size_t chunk_floats_;
    BufferPlan plan_;
    std::vector<int> num_nodes_;  ///< by rank: partial sums it sends to each owner of a chunk
    cuda::SumOrder order_;        ///< sources are all ranks' partial sums, ascending
    cuda::Stream const& stream_;
    cuda::Event done_;
    std::vector<cuda::DeviceFloats> buffers_;
    cuda::DeviceFloats received_;
    cuda::DeviceFloats sum_;
    std::unique_ptr<Handle> nccl_;
};

}  // namespace holdfast::parallel
