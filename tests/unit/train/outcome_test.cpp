// SPDX-License-Identifier: Apache-2.0
#include "train/outcome.hpp"

#include <fstream>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace holdfast::train {
namespace {

/// The outcomes of launches one after the other, as each reads the one before.
class Launches {
  public:
    explicit Launches(std::int64_t limit) : limit_(limit) {}

    LaunchOutcome end(EndedBy ended_by, ExitCode code, std::int64_t new_steps) {
        ProgressSoFar const so_far = progress_so_far(last_, saved_step_, limit_);
        saved_step_ += new_steps;
        LaunchOutcome outcome;
        outcome.code = code;
        outcome.reason = "the disk is full";
        outcome.saved_step = saved_step_;
        last_ = counted(outcome, ended_by, so_far);
        return *last_;
    }
    ExitCode fail(std::int64_t new_steps = 0, ExitCode code = ExitCode::retry) {
        return end(EndedBy::error, code, new_steps).code;
    }
    void stop(std::int64_t new_steps) { end(EndedBy::request, ExitCode::retry, new_steps); }
    void is_killed(std::int64_t new_steps = 0) { saved_step_ += new_steps; }

  private:
    std::int64_t limit_;
    std::int64_t saved_step_ = 0;
    std::optional<LaunchOutcome> last_;
};

TEST(Progress, ThreeErrorsInARowWithoutANewCheckpointAreTheEnd) {
    Launches launches(3);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    EXPECT_EQ(launches.fail(0, ExitCode::internal_error), ExitCode::internal_error);
    LaunchOutcome const third = launches.end(EndedBy::error, ExitCode::retry, 0);
    EXPECT_EQ(third.code, ExitCode::do_not_requeue);
    EXPECT_THAT(third.reason, testing::StartsWith("no progress: 3 launches in a row"));
    EXPECT_THAT(third.reason, testing::EndsWith("the last: the disk is full"));
    // Somebody has looked at it: it is worth as many again.
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    EXPECT_EQ(launches.fail(), ExitCode::do_not_requeue);
}

TEST(Progress, InternalErrorsInARowAreTheEndToo) {
    Launches launches(2);
    EXPECT_EQ(launches.fail(0, ExitCode::internal_error), ExitCode::internal_error);
    LaunchOutcome const second = launches.end(EndedBy::error, ExitCode::internal_error, 0);
    EXPECT_EQ(second.code, ExitCode::do_not_requeue);
    EXPECT_THAT(second.reason, testing::StartsWith("no progress: 2 launches in a row"));
}

TEST(Progress, ANewCheckpointBeginsTheCountAnew) {
    Launches launches(3);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(launches.fail(1), ExitCode::retry);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    EXPECT_EQ(launches.fail(1), ExitCode::retry);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    EXPECT_EQ(launches.fail(), ExitCode::do_not_requeue);
}

TEST(Progress, BeingKilledOrAskedToStopDoesNotCount) {
    Launches launches(3);
    for (int i = 0; i < 10; ++i) launches.is_killed();
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    for (int i = 0; i < 10; ++i) launches.is_killed();
    for (int i = 0; i < 10; ++i) launches.stop(0);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    EXPECT_EQ(launches.fail(), ExitCode::do_not_requeue);
}

TEST(Progress, WhatAKilledLaunchSavedIsProgress) {
    Launches launches(3);
    launches.fail();
    launches.fail();
    launches.is_killed(5);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
    launches.fail();
    launches.stop(5);
    EXPECT_EQ(launches.fail(), ExitCode::retry);
}

TEST(Progress, TheLimitIsAsGiven) {
    EXPECT_EQ(Launches(1).fail(), ExitCode::do_not_requeue);
    Launches without_limit(0);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(without_limit.fail(), ExitCode::retry);
}

TEST(Progress, OtherCodesStayWhatTheyAre) {
    for (ExitCode const code : {ExitCode::usage, ExitCode::do_not_requeue, ExitCode::owned_elsewhere}) {
        Launches launches(1);
        LaunchOutcome const outcome = launches.end(EndedBy::error, code, 0);
        EXPECT_EQ(outcome.code, code);
        EXPECT_EQ(outcome.reason, "the disk is full");
    }
}

TEST(Outcome, ComesBackFromItsFile) {
    test::TemporaryFolder const folder;
    EXPECT_FALSE(read_outcome(folder.path()));
    LaunchOutcome outcome;
    outcome.launch = 7;
    outcome.code = ExitCode::retry;
    outcome.reason = "cannot write /d\xff: \"full\"";
    outcome.epoch = 3;
    outcome.step = 1234;
    outcome.saved_step = 1200;
    outcome.launches_without_progress = 2;
    outcome.asked_to_stop = true;
    std::ofstream(folder.path() / "outcome.json") << to_json(outcome);
    auto const back = read_outcome(folder.path());
    ASSERT_TRUE(back);
    EXPECT_EQ(to_json(*back), to_json(outcome));
    EXPECT_EQ(back->code, ExitCode::retry);
    EXPECT_EQ(back->saved_step, 1200);
    EXPECT_EQ(back->launches_without_progress, 2);
    EXPECT_TRUE(back->asked_to_stop);
}

TEST(Outcome, SaysWhetherAStopWasAskedFor) {
    LaunchOutcome outcome;
    outcome.code = ExitCode::retry;
    EXPECT_TRUE(counted(outcome, EndedBy::request, {}).asked_to_stop);
    EXPECT_FALSE(counted(outcome, EndedBy::error, {}).asked_to_stop);
    outcome.code = ExitCode::finished;
    EXPECT_FALSE(counted(outcome, EndedBy::request, {}).asked_to_stop);
}

TEST(Outcome, ThatCannotBeReadIsNone) {
    test::TemporaryFolder const folder;
    for (char const* text : {"", "{", "[]", "{\"launch\": 1}", "{\"launch\": \"x\"}"}) {
        std::ofstream(folder.path() / "outcome.json") << text;
        EXPECT_FALSE(read_outcome(folder.path())) << text;
    }
}

TEST(Outcome, WhatIsNoFileIsNone) {
    test::TemporaryFolder folder;
    std::filesystem::path const path = folder.path() / outcome_file;
    std::filesystem::create_directory(path);
    EXPECT_FALSE(read_outcome(folder.path()));
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_FALSE(read_outcome(folder.path())) << "and nobody waits for a writer";
}

}  // namespace
}  // namespace holdfast::train
