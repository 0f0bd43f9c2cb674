// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of one host see: parameters, momentum, running statistics and gradients live in it
// once per host. memfd_create by the first local rank, opened by the others through /proc/PID/fd; it needs no
// /dev/shm, which containers limit to 64 MB. Where /proc does not allow that, MPI's own shared window.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace holdfast::parallel {

class Communicator;

class HostSharedMemory {
  public:
    enum class Backing {
        memfd_or_window,
        window,  ///< for the tests of the way out
    };

    /// Collective over all ranks. Zero-filled, aligned to 4096 bytes. Throws on all ranks if one cannot map
    /// it.
    static HostSharedMemory collective_allocate(Communicator const& communicator, std::size_t size_bytes,
                                                Backing backing = Backing::memfd_or_window);
    /// Collective over all ranks. Whether the ranks can share memory without /dev/shm.
    static bool collective_needs_no_folder(Communicator const& communicator);
    ~HostSharedMemory();
    HostSharedMemory(HostSharedMemory&&) noexcept;
    HostSharedMemory& operator=(HostSharedMemory&&) noexcept;

    std::span<std::byte> bytes() const { return bytes_; }
    std::span<float> floats() const;

  private:
    struct Owner;  ///< the mapping or the MPI window
    HostSharedMemory(std::unique_ptr<Owner> owner, std::span<std::byte> bytes);
    std::unique_ptr<Owner> owner_;
    std::span<std::byte> bytes_;
};

}  // namespace holdfast::parallel
