// SPDX-License-Identifier: Apache-2.0
// NCCL: its calls as members that throw, and its memory. libnccl is not linked but looked up in the process, where LibTorch has
// loaded it by the time a GPU is used, so that there is never another one than LibTorch's and every build can have this
// (docs/decisions/010-loading-cuda.md). The only file that knows <nccl.h> is the .cpp.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "cuda/device_runtime.hpp"
#include "parallel/communicator.hpp"

struct ncclComm;

namespace holdfast::parallel {

struct NcclVersions {
    std::string compiled;  ///< of nccl.h
    std::string loaded;    ///< of libnccl.so
};
/// Loads libnccl. Throws Error(do_not_requeue) if there is none.
NcclVersions nccl_versions();
/// Throws Error(do_not_requeue) unless the two are one version.
void require_nccl_as_built();

/// The calls queue their work in the stream they are given and return. All ranks make the same calls in the same order. All of them
/// throw Error(retry) if NCCL refuses.
class NcclCommunicator {
  public:
    /// Collective over `ranks`, each of which has a device of its own. MPI carries NCCL's id. NCCL may replace signal handlers, so
    /// the stop handlers are installed again.
    explicit NcclCommunicator(Communicator const& ranks);
    ~NcclCommunicator();
    NcclCommunicator(NcclCommunicator const&) = delete;
    NcclCommunicator& operator=(NcclCommunicator const&) = delete;

    /// The sends and receives in `calls` go on at the same time.
    void group(std::function<void()> const& calls) const;
    void send(float const* data, std::size_t count, int peer, cuda::Stream const& stream) const;
    void receive(float* data, std::size_t count, int peer, cuda::Stream const& stream) const;
    /// Rank p's `count` floats come to all[p * count]; `mine` may lie there already.
    void all_gather(float const* mine, float* all, std::size_t count, cuda::Stream const& stream) const;
    /// In place, in an order of NCCL's own.
    void all_reduce(float* data, std::size_t count, cuda::Stream const& stream) const;

    /// What went wrong in work that was queued earlier, in words that last; null if nothing. Any thread may ask, also while another
    /// one is in a call: NCCL looks at a word for it.
    char const* trouble() const;
    void require_no_trouble() const;

    ncclComm* get() const { return comm_; }

  private:
    ncclComm* comm_ = nullptr;
};

/// Zero-filled floats in device memory, from NCCL's allocator and registered with the communicator, so that NCCL moves them without
/// copies of its own; plain device memory where the NCCL that is loaded or one of the ranks cannot. Aligned to 4096 bytes.
class NcclFloats {
  public:
    /// Collective. `count` is the same on all ranks. Without `nccl` it is plain memory.
    NcclFloats(Communicator const& ranks, NcclCommunicator const* nccl, std::size_t count);
    ~NcclFloats();
    NcclFloats(NcclFloats const&) = delete;
    NcclFloats& operator=(NcclFloats const&) = delete;

    float* data() const { return data_; }
    bool is_registered() const { return window_ != nullptr; }

  private:
    NcclCommunicator const* nccl_;
    float* data_ = nullptr;
    void* from_nccl_ = nullptr;  ///< null: `plain_` is the memory
    cuda::DeviceFloats plain_;
    void* window_ = nullptr;
};

}  // namespace holdfast::parallel
