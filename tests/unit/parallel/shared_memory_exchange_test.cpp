// SPDX-License-Identifier: Apache-2.0
// One rank runs all replicas. Several ranks: tests/mpi/gradient_exchange_test.cpp.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "parallel/gradient_exchange.hpp"
#include "support/gradient_leaves.hpp"

namespace holdfast::parallel {
namespace {

TEST(SharedMemoryExchange, OneRankSumsInTheTree) {
    Communicator const one;
    for (int replicas : {1, 2, 3, 5, 6, 7, 13})
        for (int slots : {1, 2, 16})
            for (std::size_t num_floats : {std::size_t{16}, std::size_t{3 * 4096 + 16}}) {
                auto const exchange = collective_make_exchange(one, {replicas, num_floats, slots});
                EXPECT_EQ(reinterpret_cast<std::uintptr_t>(exchange->buffer(0).data()) % 4096, 0u);
                for (int step = 0; step < 2; ++step) {
                    test::run_plan(exchange->plan(), step,
                                   [&](int buffer) { return exchange->buffer(buffer); });
                    std::size_t next = 0;
                    exchange->reduce([&](std::size_t offset, std::span<float const> sum) {
                        ASSERT_EQ(offset, next);
                        next += sum.size();
                        for (std::size_t i = 0; i < sum.size(); ++i)
                            ASSERT_TRUE(
                                test::same_bits(sum[i], test::tree_sum(step, offset + i, 0, replicas)));
                    });
                    EXPECT_EQ(next, num_floats);
                }
            }
}

TEST(SharedMemoryExchange, KeepsLeavesApartOnlyWhileAllRunAtOnce) {
    Communicator const one;
    EXPECT_EQ(collective_make_exchange(one, {8, 16, 8})->plan().num_buffers, 8);
    EXPECT_LE(collective_make_exchange(one, {8, 16, 1})->plan().num_buffers, 4);
}

TEST(SharedMemoryExchange, RefusesUnpaddedGradients) {
    Communicator const one;
    EXPECT_THROW(collective_make_exchange(one, {1, 17, 1}), Error);
}

}  // namespace
}  // namespace holdfast::parallel
