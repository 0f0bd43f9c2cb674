// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of one host see: parameters, momentum, running statistics and gradients live in it once per host.
// memfd_create by the first local rank, opened by the others through /proc/PID/fd; it needs no /dev/shm, which containers
// limit to 64 MB.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace holdfast::parallel {

class Communicator;

class HostSharedMemory {
  public:
    /// Collective over the host. Zero-filled, aligned to 4096 bytes. Throws on all ranks if one cannot map it.
    static HostSharedMemory collective_allocate(Communicator const& communicator, std::size_t size_bytes);
    ~HostSharedMemory();
    HostSharedMemory(HostSharedMemory&&) noexcept;
    HostSharedMemory& operator=(HostSharedMemory&&) noexcept;

    std::span<std::byte> bytes() const;
    std::span<float> floats() const;

  private:
    HostSharedMemory(std::byte* base, std::size_t size_bytes);
    std::byte* base_ = nullptr;
    std::size_t size_bytes_ = 0;
};

}  // namespace holdfast::parallel
