// SPDX-License-Identifier: Apache-2.0
// Which replicas a rank runs: a contiguous range, by integer division. A run has V replicas for good; a
// launch has P ranks.
#pragma once

namespace holdfast::parallel {

struct ReplicaRange {
    int begin = 0;
    int end = 0;
    int size() const { return end - begin; }
    friend bool operator==(ReplicaRange const&, ReplicaRange const&) = default;
};

/// [rank * V / P, (rank + 1) * V / P). Throws Error(do_not_requeue) if P > V, with the way out.
ReplicaRange replica_range(int rank, int num_ranks, int num_replicas);

}  // namespace holdfast::parallel
