// SPDX-License-Identifier: Apache-2.0
#include "commands/supervise.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::commands {
namespace {

using testing::HasSubstr;

train::LaunchOutcome outcome(std::int64_t launch, ExitCode code, bool asked_to_stop = false) {
    train::LaunchOutcome outcome;
    outcome.launch = launch;
    outcome.code = code;
    outcome.reason = "the disk is full";
    outcome.asked_to_stop = asked_to_stop;
    return outcome;
}

constexpr bool requested = true;
constexpr bool not_requested = false;

TEST(EndOfLaunch, IsThatOfTheOutcomeIfItIsOfThisLaunch) {
    LaunchEnd const end = end_of_launch(outcome(8, ExitCode::do_not_requeue), {7, 8}, 137, true);
    EXPECT_EQ(end.code, 93);
    EXPECT_EQ(end.reason, "the disk is full");
    EXPECT_FALSE(end.asked_to_stop);
    EXPECT_TRUE(end_of_launch(outcome(8, ExitCode::retry, true), {7, 8}, 1, true).asked_to_stop);
}

TEST(EndOfLaunch, IsThatOfMpirunWithoutAnOutcomeOfThisLaunch) {
    for (auto const& other :
         {std::optional<train::LaunchOutcome>(), std::optional(outcome(7, ExitCode::finished, true)),
          std::optional(outcome(99'999, ExitCode::finished, true))}) {
        for (std::int64_t const now : {7, 8}) {
            LaunchEnd const end = end_of_launch(other, {7, now}, 137, true);
            EXPECT_EQ(end.code, 137);
            EXPECT_FALSE(end.asked_to_stop);
        }
    }
}

TEST(EndOfLaunch, WithoutAnOutcomeIsNoSuccess) {
    EXPECT_EQ(end_of_launch({}, {7, 8}, 0, true).code, 1);  // mpirun lost the code of a rank that was killed
    LaunchEnd const never_begun = end_of_launch({}, {0, 0}, 0, true);
    EXPECT_EQ(never_begun.code, 93);
    EXPECT_THAT(never_begun.reason, HasSubstr("--mpirun"));
    EXPECT_EQ(end_of_launch({}, {0, 0}, 0, false).code, 0);  // --dry-run
}

TEST(EndOfLaunch, OfARefusedLaunchIsNotTheOutcomeOfTheOwner) {
    EXPECT_EQ(end_of_launch(outcome(8, ExitCode::retry), {7, 8}, 94, true).code, 94);
}

TEST(AfterLaunch, WhatNeedsNobodyOrAPersonIsFinal) {
    for (int const code : {0, 2, 93, 94})
        for (bool const stop : {requested, not_requested}) {
            Decision const decision = after_launch({code, "why", false}, stop, 0, 3);
            EXPECT_FALSE(decision.starts_again) << code;
            EXPECT_EQ(decision.code, code);
            EXPECT_THAT(decision.sentence, HasSubstr("why"));
        }
}

TEST(AfterLaunch, EverythingElseIsTriedAgainAsOftenAsAllowed) {
    for (int const code : {75, 1, 137, 139, 143, 253}) {
        EXPECT_TRUE(after_launch({code, "", false}, not_requested, 0, 3).starts_again) << code;
        EXPECT_TRUE(after_launch({code, "", false}, not_requested, 2, 3).starts_again) << code;
        Decision const last = after_launch({code, "", false}, not_requested, 3, 3);
        EXPECT_FALSE(last.starts_again);
        EXPECT_EQ(last.code, code);
        EXPECT_THAT(last.sentence, HasSubstr("after 3 restarts"));
        EXPECT_FALSE(after_launch({code, "", false}, not_requested, 0, 0).starts_again);
    }
}

TEST(AfterLaunch, AStopThatWasAskedForEndsWith75) {
    for (int const code : {75, 1, 137, 143}) {
        Decision const decision = after_launch({code, "", false}, requested, 0, 3);
        EXPECT_FALSE(decision.starts_again) << code;
        EXPECT_EQ(decision.code, 75);
    }
    EXPECT_FALSE(after_launch({75, "RUN/drain", true}, not_requested, 0, 3).starts_again);
}

TEST(BackOff, DoublesUpToAMinute) {
    std::vector<std::int64_t> seconds;
    for (int restart = 1; restart <= 8; ++restart) seconds.push_back(back_off(restart).count());
    EXPECT_THAT(seconds, testing::ElementsAre(1, 2, 4, 8, 16, 32, 60, 60));
    EXPECT_EQ(back_off(1'000'000).count(), 60);
}

}  // namespace
}  // namespace holdfast::commands
