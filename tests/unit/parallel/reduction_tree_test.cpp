// SPDX-License-Identifier: Apache-2.0
#include "parallel/reduction_tree.hpp"

#include <bit>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/gradient_leaves.hpp"

namespace holdfast::parallel {
namespace {

using Kind = BufferPlan::Kind;
using Span = std::pair<int, int>;

std::set<Span> all_nodes(int num_replicas) {
    std::set<Span> nodes;
    auto const collect = [&](auto const& self, int lo, int hi) -> void {
        nodes.insert({lo, hi});
        if (hi - lo == 1) return;
        self(self, lo, lo + (hi - lo) / 2);
        self(self, lo + (hi - lo) / 2, hi);
    };
    collect(collect, 0, num_replicas);
    return nodes;
}

/// Follows the plan with the set of replicas each buffer holds: only siblings may ever meet, left + right.
void check_plan(int num_replicas, std::set<Span> const& nodes, ReplicaRange range, int slots, Merge merge) {
    SCOPED_TRACE(testing::Message() << "V " << num_replicas << " [" << range.begin << ", " << range.end
                                    << ") slots " << slots << " merge " << static_cast<int>(merge));
    BufferPlan const plan = make_buffer_plan(num_replicas, range, slots, merge);
    std::vector<Span> holds(static_cast<std::size_t>(plan.num_buffers), Span{-1, -1});
    auto const at = [&](int buffer) -> Span& { return holds.at(static_cast<std::size_t>(buffer)); };
    auto const join = [&](int buffer, Span right) {
        Span& left = at(buffer);
        ASSERT_EQ(left.second, right.first);
        ASSERT_EQ(right.first, left.first + (right.second - left.first) / 2);
        ASSERT_TRUE(nodes.contains({left.first, right.second}));
        left.second = right.second;
    };
    int next = range.begin;
    int running = 0;
    for (auto const& action : plan.actions) {
        switch (action.kind) {
            case Kind::run:
                ASSERT_EQ(action.replica, next++);
                ASSERT_EQ(at(action.buffer).first, -1) << "overwrites a sum that is still needed";
                at(action.buffer) = {action.replica, action.replica + 1};
                ASSERT_LE(++running, slots);
                break;
            case Kind::run_and_add:
                ASSERT_EQ(action.replica, next++);
                ASSERT_EQ(running++, 0);
                join(action.buffer, {action.replica, action.replica + 1});
                break;
            case Kind::end_of_wave:
                ASSERT_GT(running, 0);
                running = 0;
                break;
            case Kind::add:
                ASSERT_EQ(running, 0);
                join(action.buffer, at(action.from_buffer));
                at(action.from_buffer) = {-1, -1};
                break;
        }
    }
    ASSERT_EQ(running, 0);
    ASSERT_EQ(next, range.end);
    int covered = range.begin;
    for (PartialSum const& sum : plan.partial_sums) {
        ASSERT_EQ(sum.begin, covered);
        ASSERT_EQ(at(sum.buffer), Span(sum.begin, sum.end));
        at(sum.buffer) = {-1, -1};
        covered = sum.end;
    }
    ASSERT_EQ(covered, range.end);
    for (Span const& left_over : holds) ASSERT_EQ(left_over.first, -1);
    if (merge == Merge::none) {
        ASSERT_EQ(plan.num_buffers, range.size());
        return;
    }
    std::vector<ReplicaRange> sums;
    for (PartialSum const& sum : plan.partial_sums) sums.push_back({sum.begin, sum.end});
    ASSERT_EQ(sums, maximal_nodes(num_replicas, range));
    int const log2_size = std::bit_width(static_cast<unsigned>(range.size()));
    ASSERT_LE(plan.num_buffers, slots + 2 * log2_size);
    ASSERT_LE(plan.num_buffers, range.size());
}

TEST(BufferPlan, EveryRangeOfEveryTreeIsCoveredOnceWithinTheBufferBound) {
    for (int num_replicas = 1; num_replicas <= 26; ++num_replicas) {
        std::set<Span> const nodes = all_nodes(num_replicas);
        for (int begin = 0; begin < num_replicas; ++begin)
            for (int end = begin + 1; end <= num_replicas; ++end)
                for (int slots : {1, 2, 3, 4, 7, 40})
                    for (Merge const merge : {Merge::none, Merge::early}) {
                        check_plan(num_replicas, nodes, {begin, end}, slots, merge);
                        if (HasFatalFailure()) return;
                    }
    }
}

TEST(BufferPlan, LargeRunsNeedFewBuffers) {
    EXPECT_LE(make_buffer_plan(1024, {0, 1024}, 1, Merge::early).num_buffers, 11);
    EXPECT_EQ(make_buffer_plan(1024, {0, 2}, 1, Merge::early).num_buffers, 1);
    EXPECT_LE(make_buffer_plan(1000, {100, 200}, 4, Merge::early).num_buffers, 16);
}

TEST(BufferPlan, OneNodePerRankWhenRanksDivideByHalves) {
    for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(maximal_nodes(24, replica_range(rank, 8, 24)).size(), 1u);
    EXPECT_EQ(maximal_nodes(12, {4, 8}), (std::vector<ReplicaRange>{{4, 6}, {6, 7}, {7, 8}}));
}

TEST(TreeSum, EveryPartitionGivesTheBitsOfTheSerialSum) {
    constexpr std::size_t num_floats = TreeSum::max_block_floats;
    constexpr int step = 3;
    for (int num_replicas = 1; num_replicas <= 9; ++num_replicas) {
        std::vector<float> expected(num_floats);
        bool naive_differs = false;
        for (std::size_t i = 0; i < num_floats; ++i) {
            expected[i] = test::tree_sum(step, i, 0, num_replicas);
            naive_differs =
                naive_differs || !test::same_bits(expected[i], test::naive_sum(step, i, num_replicas));
        }
        EXPECT_EQ(naive_differs, num_replicas > 2)
            << "such numbers would not notice a wrong order, V " << num_replicas;
        for (int ranks = 1; ranks <= num_replicas; ++ranks)
            for (int slots : {1, 2, 5})
                for (Merge const merge : {Merge::none, Merge::early}) {
                    std::vector<std::vector<float>> memory;
                    std::vector<ReplicaRange> sources;
                    std::vector<std::size_t> where;
                    for (int rank = 0; rank < ranks; ++rank) {
                        BufferPlan const plan = make_buffer_plan(
                            num_replicas, replica_range(rank, ranks, num_replicas), slots, merge);
                        std::size_t const first = memory.size();
                        memory.resize(first + static_cast<std::size_t>(plan.num_buffers),
                                      std::vector<float>(num_floats));
                        test::run_plan(plan, step, [&](int buffer) {
                            return std::span(memory[first + static_cast<std::size_t>(buffer)]);
                        });
                        for (PartialSum const& sum : plan.partial_sums) {
                            sources.push_back({sum.begin, sum.end});
                            where.push_back(first + static_cast<std::size_t>(sum.buffer));
                        }
                    }
                    TreeSum sum(num_replicas, {0, num_replicas}, sources);
                    for (std::size_t i = 0; i < sources.size(); ++i)
                        sum.set_source(static_cast<int>(i), memory[where[i]].data());
                    std::vector<float> out(num_floats);
                    for (std::size_t begin : {std::size_t{0}, num_floats / 2}) {
                        std::span<float const> const block = sum.block(begin, num_floats / 2);
                        for (std::size_t i = 0; i < num_floats / 2; ++i)
                            ASSERT_TRUE(test::same_bits(block[i], expected[begin + i]));
                        sum.block(begin, num_floats / 2, out.data());
                        for (std::size_t i = 0; i < num_floats / 2; ++i)
                            ASSERT_TRUE(test::same_bits(out[i], expected[begin + i]));
                    }
                }
    }
}

TEST(TreeSum, SourcesMayBePieces) {
    std::vector<float> const left = {1, 2, 3, 4};
    std::vector<float> const right_piece = {30, 40};  // elements 2 and 3
    TreeSum sum(2, {0, 2}, {{0, 1}, {1, 2}});
    sum.set_source(0, left.data());
    sum.set_source(1, right_piece.data(), 2);
    std::span<float const> const block = sum.block(2, 2);
    EXPECT_EQ(block[0], 33);
    EXPECT_EQ(block[1], 44);
}

}  // namespace
}  // namespace holdfast::parallel
