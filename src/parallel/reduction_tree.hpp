// SPDX-License-Identifier: Apache-2.0
// The fixed order of summation. node(lo, hi) = node(lo, mid) + node(mid, hi), mid = lo + (hi - lo) / 2, over
// replica numbers: fp32 addition is commutative bit for bit but not associative, so a fixed tree is all it
// takes for equal bits on any number of ranks. Plans are pure functions; TreeSum adds blocks that stay in
// cache. No MPI.
#pragma once

#include <cstddef>
#include <cstdint>
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
        run,  ///< run `replica` into `buffer` (overwriting it); runs of one wave go on at the same time
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

/// The largest tree nodes that lie inside `range`, ascending: what is left of it when everything possible is
/// added up.
std::vector<ReplicaRange> maximal_nodes(int num_replicas, ReplicaRange range);

/// The whole tree from `sources`, which cover all replicas: i >= 0 takes source i, -1 adds the two sums
/// before it.
std::vector<std::int16_t> postfix_order(int num_replicas, std::vector<ReplicaRange> const& sources);

/// Finishes one tree node from smaller ones that lie in memory, block by block.
class TreeSum {
  public:
    /// Largest block: 16 KB of floats. Inputs stream through, intermediate sums stay in the first-level
    /// cache.
    static constexpr std::size_t max_block_floats = 4096;

    /// `sources` cover `node` without overlap, each a node of the tree over num_replicas.
    TreeSum(int num_replicas, ReplicaRange node, std::vector<ReplicaRange> const& sources);
    /// Element e of the source is data[e - first_element].
    void set_source(int index, float const* data, std::size_t first_element = 0);
    /// The sum of elements [offset, offset + count), count <= max_block_floats. It lies in `out` if given,
    /// otherwise in memory of this object, valid until the next call, or in the source itself if that is the
    /// whole node.
    std::span<float const> block(std::size_t offset, std::size_t count, float* out = nullptr);
    std::size_t num_sources() const { return sources_.size(); }
    /// Whether the node is one source as it lies, so that there is nothing to add.
    bool is_source() const { return adds_.empty(); }

  private:
    struct Source {
        float const* data = nullptr;
        std::size_t first_element = 0;
    };
    struct Add {  ///< operands below sources_.size() are sources, the others intermediate sums
        int left = 0;
        int right = 0;
        int result = 0;
    };
    std::vector<Source> sources_;
    std::vector<Add> adds_;
    std::vector<float> intermediate_;
};

}  // namespace holdfast::parallel
