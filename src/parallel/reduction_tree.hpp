// SPDX-License-Identifier: Apache-2.0
// The fixed order of summation. node(lo, hi) = node(lo, mid) + node(mid, hi), mid = lo + (hi - lo) / 2, over replica numbers:
// fp32 addition is commutative bit for bit but not associative, so a fixed tree is all it takes for equal bits on any number
// of ranks. Pure functions; no memory, no MPI.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "parallel/replica_range.hpp"

namespace holdfast::parallel {

/// A finished sum over replicas [begin, end), kept in buffer `buffer` of its rank.
struct PartialSum {
    int begin = 0;
    int end = 0;
    int buffer = 0;
    friend bool operator==(PartialSum const&, PartialSum const&) = default;
};

/// What a rank does in every step, before the exchange.
struct BufferPlan {
    enum class Kind {
        run,          ///< run `replica` into `buffer` (overwriting it); runs of one wave go on at the same time
        run_and_add,  ///< run `replica` alone and add its gradient to what `buffer` holds (its left sibling)
        end_of_wave,  ///< wait for the runs since the last end_of_wave
        add,          ///< buffer += from_buffer, element by element
    };
    struct Action {
        Kind kind = Kind::run;
        int replica = 0;
        int buffer = 0;
        int from_buffer = 0;
    };
    std::vector<Action> actions;
    std::vector<PartialSum> partial_sums;  ///< what is left for the exchange, ascending
    int num_buffers = 0;                   ///< at most slots + O(log(range size)) when merging
};

enum class Merge {
    none,   ///< keep every leaf in a buffer of its own
    early,  ///< add finished siblings as soon as possible: least memory
};

/// Pure function. `slots` replicas run at the same time.
BufferPlan make_buffer_plan(int num_replicas, ReplicaRange range, int slots, Merge merge);

}  // namespace holdfast::parallel
