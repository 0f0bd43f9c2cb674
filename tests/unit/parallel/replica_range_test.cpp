// SPDX-License-Identifier: Apache-2.0
#include "parallel/replica_range.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"

namespace holdfast::parallel {
namespace {

TEST(ReplicaRange, CoversEveryReplicaOnceAndEvenly) {
    for (int replicas = 1; replicas <= 70; ++replicas)
        for (int ranks = 1; ranks <= replicas; ++ranks) {
            int next = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                ReplicaRange const range = replica_range(rank, ranks, replicas);
                ASSERT_EQ(range.begin, next);
                ASSERT_GE(range.size(), replicas / ranks);
                ASSERT_LE(range.size(), replicas / ranks + 1);
                next = range.end;
            }
            ASSERT_EQ(next, replicas);
        }
}

TEST(ReplicaRange, DoesNotOverflow) {
    EXPECT_EQ(replica_range(99999, 100000, 100000), (ReplicaRange{99999, 100000}));
}

TEST(ReplicaRange, RefusesMoreRanksThanReplicas) {
    try {
        replica_range(0, 5, 4);
        FAIL() << "accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
        EXPECT_THAT(error.what(), testing::HasSubstr("at most 4 ranks"));
    }
}

}  // namespace
}  // namespace holdfast::parallel
