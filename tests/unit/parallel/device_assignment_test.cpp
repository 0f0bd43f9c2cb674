// SPDX-License-Identifier: Apache-2.0
#include "parallel/device_assignment.hpp"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"

namespace holdfast::parallel {
namespace {

using Uuids = std::vector<std::vector<std::string>>;

std::string refusal(Uuids const& uuids) {
    try {
        for (int rank = 0; rank < static_cast<int>(uuids.size()); ++rank) assign_device(rank, uuids);
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
        return error.what();
    }
    return "accepted";
}

TEST(AssignDevice, LocalRankCountsWhenAllAreVisible) {
    Uuids const uuids(4, {"a", "b", "c", "d"});
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(assign_device(rank, uuids), rank);
    EXPECT_EQ(assign_device(1, Uuids(2, {"a", "b", "c", "d"})), 1);
}

TEST(AssignDevice, TheOnlyVisibleOneIsDeviceZero) {
    Uuids uuids;
    for (int rank = 0; rank < 8; ++rank) uuids.push_back({std::to_string(rank)});
    for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(assign_device(rank, uuids), 0);
}

TEST(AssignDevice, RefusesWithTheWayOut) {
    EXPECT_THAT(refusal(Uuids(4, {"a", "b"})), testing::HasSubstr("4 ranks on this host, but 2 GPUs"));
    EXPECT_THAT(refusal(Uuids(2, {"a"})),
                testing::HasSubstr("--ntasks-per-node=1"));  // --gpus-per-task=1 under mpirun
    EXPECT_THAT(refusal({{}}), testing::HasSubstr("--device cpu"));
    EXPECT_THAT(refusal({{"a", "b"}, {}}), testing::HasSubstr("local rank 1 sees no GPU"));
    EXPECT_THAT(refusal({{"b"}, {"a", "b"}}), testing::HasSubstr("local ranks 0 and 1 would both use GPU b"));
    EXPECT_THAT(refusal({{"a", "b", "c"}, {"a", "b", "c"}, {"a", "b"}}), testing::HasSubstr("sees only 2"));
    EXPECT_THAT(refusal({{"a", "b", "c"}, {"a", "b", "c"}, {"a", "b"}}),
                testing::HasSubstr("--gpus-per-node"));
}

TEST(ChoosesGpus, IfEveryRankHasOne) {
    EXPECT_TRUE(chooses_gpus({{{"a"}, true}, {{"a", "b"}, false}}));
    EXPECT_FALSE(chooses_gpus({{{}, false}, {{}, false}}));
}

TEST(ChoosesGpus, RefusesToFallBackWhereThatCouldBeAMistake) {
    auto const refusal_of = [](std::vector<GpuView> const& ranks) -> std::string {
        try {
            chooses_gpus(ranks);
        } catch (Error const& error) {
            EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
            return error.what();
        }
        return "accepted";
    };
    EXPECT_THAT(refusal_of({{{"a"}, true}, {{}, true}, {{}, false}}),
                testing::HasSubstr("1 of 3 ranks see a GPU"));
    EXPECT_THAT(refusal_of({{{"a"}, false}, {{}, false}}), testing::HasSubstr("--device cpu"));
    EXPECT_THAT(refusal_of({{{}, false}, {{}, true}}), testing::HasSubstr("no rank can use a GPU"));
    EXPECT_THAT(refusal_of({{{}, true}}), testing::HasSubstr("--device cpu"));
}

TEST(GpuView, ExpectsWhatTheJobWasGiven) {
    bool const has_driver = gpu_view({}).expects_one;
    for (char const* const name : {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS"}) {
        setenv(name, "0,1", 1);
        EXPECT_TRUE(gpu_view({"a"}).expects_one) << name;
        setenv(name, "", 1);
        EXPECT_EQ(gpu_view({}).expects_one, has_driver) << name;
        unsetenv(name);
    }
    EXPECT_EQ(gpu_view({"a", "b"}).uuids, (std::vector<std::string>{"a", "b"}));
}

TEST(Cores, TextGoesBothWays) {
    for (std::vector<int> const& cores :
         {std::vector<int>{}, {5}, {0, 1, 2, 3}, {0, 2, 3, 7}, {1, 2, 127, 128}})
        EXPECT_EQ(parse_cores(format_cores(cores)), cores);
    EXPECT_EQ(format_cores({0, 1, 2, 3, 6}), "0-3,6");
    for (char const* const text : {"x", "1-", "1,", "1;2", "-", "1--2"})
        EXPECT_THROW(parse_cores(text), Error) << text;
}

TEST(Cores, ThisProcessHasSome) {
    EXPECT_FALSE(affinity_cores().empty());
    EXPECT_GE(num_machine_cores(), 1);
}

}  // namespace
}  // namespace holdfast::parallel
