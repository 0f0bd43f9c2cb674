// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/doctor/storage_checks.hpp"
#include "unit/commands/expect_finding.hpp"

namespace holdfast::commands::doctor {
namespace {

using testing::HasSubstr;

TEST(JudgeRunDirectory, WritableOrNot) {
    EXPECT_EQ(state_of(judge_run_directory("run", "/a/run", "")), State::ok);
    Finding const finding = judge_run_directory("run", "/a/run", "Read-only file system");
    EXPECT_EQ(state_of(finding), State::error);
    EXPECT_EQ(finding.seen, "/a/run cannot be written: Read-only file system");
}

TEST(JudgeShared, NamesEveryRankThatSeesNothing) {
    std::vector<std::string> const hosts = {"node0", "node0", "node1"};
    EXPECT_EQ(state_of(judge_shared(true, "/a", {"", "", ""}, hosts)), State::ok);
    Finding const finding = judge_shared(true, "/a", {"", "gone", "stale"}, hosts);
    EXPECT_EQ(state_of(finding), State::error);
    EXPECT_THAT(finding.seen, HasSubstr("rank 1 (node0) does not see what rank 0 (node0) wrote in /a: gone"));
    EXPECT_THAT(finding.seen, HasSubstr("rank 2 (node1)"));
    EXPECT_EQ(state_of(judge_shared(false, "/a", {"", ""}, hosts)), State::unknown);
}

TEST(JudgeSync, FastSlowAndUnknown) {
    EXPECT_EQ(state_of(judge_sync({{0.002, 100}, ""}, 170'000'000)), State::ok);
    EXPECT_THAT(judge_sync({{0.002, 100}, ""}, 170'000'000).seen, HasSubstr("about 1.7 s a checkpoint"));
    EXPECT_EQ(state_of(judge_sync({{0.99, 1}, ""}, 1)), State::ok);
    EXPECT_EQ(state_of(judge_sync({{1.0, 1}, ""}, 1)), State::warning);
    Finding const unknown = judge_sync({{}, "no answer within 10 s"}, 1);
    EXPECT_EQ(state_of(unknown), State::unknown);
    EXPECT_EQ(unknown.why, "no answer within 10 s");
}

TEST(JudgeSpace, RoomForWhatIsToCome) {
    auto const state = [](std::uint64_t free_bytes, std::int64_t stored, int keep = 3) {
        return state_of(judge_space({{free_bytes, 0, 0}, ""}, "/a", 100, stored, keep));
    };
    EXPECT_EQ(state(400, 0), State::ok);
    EXPECT_EQ(state(399, 0), State::warning);
    EXPECT_EQ(state(99, 0), State::error);
    EXPECT_EQ(state(100, 3), State::ok) << "only the one that is being written";
    EXPECT_EQ(state(100, 9), State::ok) << "older ones will be deleted";
    EXPECT_EQ(state(99, 9), State::error);
    EXPECT_THAT(judge_space({{0, 0, 0}, ""}, "/a", 100, 0, 3).fix, HasSubstr("--keep 2"));
    EXPECT_THAT(judge_space({{0, 0, 0}, ""}, "/a", 100, 0, 2).fix, testing::Not(HasSubstr("--keep 2")));
}

TEST(JudgeSpace, FilesAndUnknown) {
    EXPECT_EQ(state_of(judge_space({{1000, 50, 0}, ""}, "/a", 1, 0, 3)), State::error);
    EXPECT_EQ(state_of(judge_space({{1000, 50, 1}, ""}, "/a", 1, 0, 3)), State::ok);
    EXPECT_EQ(state_of(judge_space({{}, "no such disk"}, "/a", 1, 0, 3)), State::unknown);
}

}  // namespace
}  // namespace holdfast::commands::doctor
