// SPDX-License-Identifier: Apache-2.0
#include "parallel/replica_range.hpp"

#include <cstdint>

#include "core/error.hpp"

namespace holdfast::parallel {

ReplicaRange replica_range(int rank, int num_ranks, int num_replicas) {
    require(num_ranks <= num_replicas, ExitCode::do_not_requeue,
            "{} ranks for {} replicas (a rank runs at least one replica, and a run keeps its number of "
            "replicas for good); "
            "start at most {} ranks",
            num_ranks, num_replicas, num_replicas);
    auto const begin = [&](int r) { return static_cast<int>(std::int64_t{r} * num_replicas / num_ranks); };
    return {begin(rank), begin(rank + 1)};
}

}  // namespace holdfast::parallel
