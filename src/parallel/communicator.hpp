// SPDX-License-Identifier: Apache-2.0
// The ranks of this launch and what they say to each other outside the gradient exchange. Ranks are ordered
// by (host, local rank), so the replicas of a host are contiguous. All members that talk are collective and
// say so by their verb (barrier, broadcast, gather, agree_*). Only the main thread calls them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace holdfast::parallel {

/// Splits the ranks into hosts: maps (world rank) to a host number. Empty: by shared memory, as the machine
/// is. Tests pass a grouping to play several hosts on one.
using HostOf = std::function<int(int world_rank)>;

class Communicator {
  public:
    /// One rank, no MPI: for unit tests and the commands that never start MPI.
    Communicator();
    /// Collective over all ranks of the launch: a private, reordered duplicate of MPI_COMM_WORLD.
    static Communicator collective_world(HostOf const& host_of = {});
    ~Communicator();
    Communicator(Communicator&&) noexcept;
    Communicator& operator=(Communicator&&) noexcept;

    int rank() const;
    int size() const;
    int host() const;  ///< number of this rank's host in [0, num_hosts())
    int num_hosts() const;
    int local_rank() const;  ///< within the host
    int local_size() const;
    std::string const& host_name() const;

    /// From now on calls `tell` with true when this rank has come to where it can only wait for others, in any of the members
    /// below, and with false when it goes on.
    void tell_when_waiting(std::function<void(bool is_waiting)> tell);

    void barrier() const;
    void barrier_host() const;  ///< of the ranks of this host
    void broadcast(std::span<std::byte> bytes, int root) const;
    /// The text of every rank, on all ranks.
    std::vector<std::string> all_gather(std::string const& mine) const;
    std::string broadcast(std::string const& text, int root) const;
    /// Throws on *all* ranks if any rank passes an error, with the first failing rank's message, code, rank
    /// and host.
    void agree_ok(std::exception_ptr local_error) const;
    /// Runs `action` on every rank, then agree_ok. For steps that may fail on one rank only.
    void agree(std::function<void()> const& action) const;

    struct State;  ///< holds the MPI handles; defined inside parallel/
    State const& state() const { return *state_; }

  private:
    explicit Communicator(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace holdfast::parallel
