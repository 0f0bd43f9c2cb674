// SPDX-License-Identifier: Apache-2.0
// A launch table made by hand: each rank has so many cores of its own, whatever this machine has.
#pragma once

#include "parallel/launch_table.hpp"

namespace holdfast::test {

inline parallel::LaunchTable launch_table_of(std::vector<int> const& host_of_rank, int cores_per_rank,
                                             int num_replicas) {
    parallel::LaunchTable table;
    int const num_ranks = static_cast<int>(host_of_rank.size());
    for (int rank = 0; rank < num_ranks; ++rank) {
        parallel::LaunchRow row;
        row.host = host_of_rank[static_cast<std::size_t>(rank)];
        for (int core = 0; core < cores_per_rank; ++core) row.cores.push_back(rank * cores_per_rank + core);
        row.replicas = parallel::replica_range(rank, num_ranks, num_replicas);
        table.rows.push_back(std::move(row));
    }
    return table;
}

}  // namespace holdfast::test
