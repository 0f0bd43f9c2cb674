// SPDX-License-Identifier: Apache-2.0
// A barrier of the ranks of one host, in memory they share. It spins for a moment, because equally fast ranks
// arrive nearly together, and then sleeps in the kernel, because a spinning rank takes the core from the one
// it waits for. MPI_Barrier only ever spins.
#pragma once

#include <cstdint>
#include <functional>

namespace holdfast::parallel {

class HostBarrier {
  public:
    /// Lives at the beginning of a shared memory; zero bytes are a barrier nobody has reached yet.
    struct alignas(64) Words {
        std::uint32_t arrived = 0;
        std::uint32_t generation = 0;
    };

    HostBarrier() = default;
    HostBarrier(Words* words, int num_ranks)
        : words_(words), num_ranks_(static_cast<std::uint32_t>(num_ranks)) {}

    /// Collective over the host. What any rank wrote before is visible to all after. With `while_waiting` the
    /// rank does not sleep but calls it again and again: MPI needs calls to move what is still on its way to
    /// other hosts.
    void wait(std::function<void()> const& while_waiting = {}) const;

  private:
    Words* words_ = nullptr;
    std::uint32_t num_ranks_ = 1;
};

}  // namespace holdfast::parallel
