// SPDX-License-Identifier: Apache-2.0
// Who runs where: the table printed at the start, and what in it deserves a warning. Wrong binding and ranks
// that all landed on one host are the usual reasons for a slow run, and nothing else shows them.
#pragma once

#include <string>
#include <vector>

#include "parallel/communicator.hpp"
#include "parallel/replica_range.hpp"

namespace holdfast::parallel {

struct LaunchRow {
    int host = 0;
    std::string host_name;
    std::string device;      ///< "cpu", "GPU 3 (NVIDIA H200)"
    std::vector<int> cores;  ///< the rank may run on these, ascending
    int machine_cores = 0;   ///< online on its host
    ReplicaRange replicas;
};

struct LaunchTable {
    std::vector<LaunchRow> rows;  ///< by rank

    std::string text() const;
    std::vector<std::string> warnings() const;  ///< the two below
    std::vector<std::string> unused_core_warnings()
        const;  ///< hosts most of whose cores the ranks may not use
    std::vector<std::string> crowded_core_warnings() const;  ///< hosts with more ranks than cores
    /// Cores that any rank of the host may use. On a cluster a rank's mask is often all of its host's cores,
    /// so masks overlap.
    int num_cores_of_host(int host) const;
    int num_replicas_of_host(int host) const;
    int num_ranks_of_host(int host) const;
    std::vector<int> first_rank_of_hosts() const;  ///< in the order of the hosts
    std::vector<std::string> host_names() const;   ///< each once, in the order of the ranks
    /// Default of --threads: cores of the host / replicas there, at least 1; the least over the hosts.
    int default_threads_per_replica() const;
};

/// Collective.
LaunchTable collective_launch_table(Communicator const& communicator, std::string const& device,
                                    int num_replicas);

}  // namespace holdfast::parallel
