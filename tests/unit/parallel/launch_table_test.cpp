// SPDX-License-Identifier: Apache-2.0
#include "parallel/launch_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::parallel {
namespace {

LaunchRow row(int host, std::vector<int> cores, ReplicaRange replicas, int machine_cores = 8) {
    return {host, "node" + std::to_string(host), "cpu", std::move(cores), machine_cores, replicas};
}

TEST(LaunchTable, ShowsWhoRunsWhere) {
    LaunchTable const table{{row(0, {0, 1, 2, 3}, {0, 2}), row(1, {0, 1, 6}, {2, 3})}};
    EXPECT_EQ(table.text(),
              "rank  host   device  cores  replicas\n"
              "   0  node0  cpu     0-3    0-1\n"
              "   1  node1  cpu     0-1,6  2");
}

TEST(LaunchTable, CoresOfAHostAreTheUnionOfMasks) {
    // Two ranks that may both use all cores, and two that are bound to halves: the same 8 cores.
    for (bool const bound : {false, true}) {
        std::vector<int> const all = {0, 1, 2, 3, 4, 5, 6, 7};
        LaunchTable const table{{row(0, bound ? std::vector{0, 1, 2, 3} : all, {0, 2}),
                                 row(0, bound ? std::vector{4, 5, 6, 7} : all, {2, 4})}};
        EXPECT_EQ(table.num_cores_of_host(0), 8);
        EXPECT_EQ(table.num_replicas_of_host(0), 4);
        EXPECT_EQ(table.default_threads_per_replica(), 2);
        EXPECT_THAT(table.warnings(), testing::IsEmpty());
    }
}

TEST(LaunchTable, NamesEachHostOnce) {
    LaunchTable const table{{row(0, {0}, {0, 1}), row(0, {1}, {1, 2}), row(1, {0}, {2, 3})}};
    EXPECT_THAT(table.host_names(), testing::ElementsAre("node0", "node1"));
}

TEST(LaunchTable, TheSmallestHostDecidesTheThreads) {
    EXPECT_EQ((LaunchTable{{row(0, {0, 1, 2, 3}, {0, 1}, 4), row(1, {0, 1}, {1, 2}, 2)}}
                   .default_threads_per_replica()),
              2);
    EXPECT_EQ((LaunchTable{{row(0, {0}, {0, 5}, 1)}}.default_threads_per_replica()), 1);
}

TEST(LaunchTable, WarnsOfUnusedAndCrowdedCores) {
    LaunchTable const bound{{row(0, {0}, {0, 1}), row(0, {1}, {1, 2})}};
    EXPECT_THAT(bound.warnings(), testing::ElementsAre(testing::HasSubstr("may use 2 of its 8 cores")));
    LaunchTable const crowded{{row(0, {0}, {0, 1}, 1), row(0, {0}, {1, 2}, 1)}};
    EXPECT_THAT(crowded.warnings(),
                testing::ElementsAre(testing::HasSubstr("2 ranks share 1 cores on node0")));
}

TEST(LaunchTable, OfThisProcess) {
    LaunchTable const table = collective_launch_table(Communicator(), "cpu", 3);
    ASSERT_EQ(table.rows.size(), 1u);
    EXPECT_EQ(table.rows[0].replicas, (ReplicaRange{0, 3}));
    EXPECT_FALSE(table.rows[0].cores.empty());
    EXPECT_THAT(table.text(), testing::EndsWith("0-2"));
}

}  // namespace
}  // namespace holdfast::parallel
