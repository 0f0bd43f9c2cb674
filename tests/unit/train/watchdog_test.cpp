// SPDX-License-Identifier: Apache-2.0
#include "train/watchdog.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::train {
namespace {

using namespace std::chrono_literals;

TEST(TickCounter, ATickThatComesOverASecondLateCountsForNothing) {
    WatchdogClock::time_point now{};
    TickCounter counter(now);
    EXPECT_TRUE(counter.count(now += 250ms));
    EXPECT_TRUE(counter.count(now += 1250ms)) << "late by a second, not by more";
    EXPECT_FALSE(counter.count(now += 1251ms));
    EXPECT_FALSE(counter.count(now += 24h)) << "suspended for a day";
    EXPECT_TRUE(counter.count(now += 250ms)) << "only the late tick is lost";
}

TEST(Deadline, IsTheGivenOneOrTwentySteps) {
    EXPECT_EQ(deadline_s(Phase::compute, 60, 0.5), 60);
    EXPECT_EQ(deadline_s(Phase::exchange, 60, 3), 60);
    EXPECT_EQ(deadline_s(Phase::exchange, 60, 3.25), 65);
    EXPECT_EQ(deadline_s(Phase::record, 1, 0.001), 1);
}

TEST(Deadline, IsTenTimesAsLongWhereNoStepTellsHowLongItTakes) {
    for (Phase const phase : {Phase::start, Phase::evaluate, Phase::check, Phase::save, Phase::shutdown})
        EXPECT_EQ(deadline_s(phase, 60, 1), 600) << name_of(phase);
    EXPECT_EQ(deadline_s(Phase::save, 60, 45), 900);
    EXPECT_EQ(deadline_s(Phase::compute, 60, 0), 600) << "first step of the launch";
}

TEST(LongestStep, GoesByTheClockButNotWhileTheProcessIsSuspended) {
    LongestStep::Clock::time_point now{};
    LongestStep steps;
    steps.end(now, 0);
    EXPECT_EQ(steps.longest(), 0s) << "no step has begun";
    steps.begin(now, 10);
    steps.end(now += 120ms, 10);
    EXPECT_EQ(steps.longest(), 120ms);
    steps.begin(now, 10);
    steps.end(now += 1900ms, 17);
    EXPECT_EQ(steps.longest(), 1900ms);
    steps.begin(now, 17);
    steps.end(now += 1h, 27);
    EXPECT_EQ(steps.longest(), 3s) << "10 ticks, and up to one before and after them";
    steps.begin(now, 27);
    steps.end(now += 10ms, 27);
    steps.end(now += 1h, 10000);
    EXPECT_EQ(steps.longest(), 3s) << "what came between the steps is none";
}

/// A board of two ranks and the detector of the first one. W is 2 s: 8 ticks.
class Detector : public ::testing::Test {
  protected:
    Detector() {
        memory_.resize(PhaseBoard::bytes_for(2) / sizeof(Line));
        mine.join(std::as_writable_bytes(std::span(memory_)), 0, 4);
        other.join(std::as_writable_bytes(std::span(memory_)), 1, 5);
    }

    void tick(int times = 1) {
        for (int i = 0; i < times; ++i) {
            mine.show_life();
            if (other_runs) other.show_life();
            mine.read(rows_);
            if (longest_step_s > 0) rows_[1].longest_step_s = longest_step_s;
            detector.tick(rows_, mine.own_row());
        }
    }

    /// Steps [begin, end), of a tick each.
    void steps(std::int64_t begin, std::int64_t end) {
        for (std::int64_t step = begin; step < end; ++step) {
            for (Phase const phase : {Phase::data, Phase::compute, Phase::exchange})
                for (PhaseBoard* const board : {&mine, &other}) board->enter(phase, step);
            tick();
        }
    }

    struct alignas(64) Line {
        std::byte bytes[64]{};
    };
    std::vector<Line> memory_;
    std::vector<PhaseBoard::Row> rows_;
    PhaseBoard mine;
    PhaseBoard other;
    bool other_runs = true;
    double longest_step_s = 0;  ///< in place of what the clock says
    HangDetector detector{2};
};

TEST_F(Detector, NoticesARankThatStandsStillAtTheDeadlineAndNotBefore) {
    steps(0, 5);
    for (int i = 0; i < 7; ++i) {
        mine.enter(Phase::data, 5);  // this rank gets on all the time
        tick();
        EXPECT_FALSE(detector.passed_deadline_s());
    }
    mine.enter(Phase::compute, 5);
    tick();
    EXPECT_EQ(detector.passed_deadline_s(), 2);
    HostReport const report = detector.report();
    ASSERT_EQ(report.ranks.size(), 2U);
    EXPECT_EQ(report.ranks[1].rank, 5);
    EXPECT_EQ(report.ranks[1].phase, Phase::exchange);
    EXPECT_EQ(report.ranks[1].step, 4);
    EXPECT_EQ(report.ranks[1].seconds, 2);
    EXPECT_TRUE(report.ranks[1].is_waiting);
    EXPECT_EQ(report.ranks[1].silent_s, 0);
    EXPECT_EQ(report.ranks[0].seconds, 0);
}

TEST_F(Detector, GettingOnWithinAPhaseCounts) {
    steps(0, 5);
    for (int i = 0; i < 40; ++i) {
        for (PhaseBoard* const board : {&mine, &other}) board->enter(Phase::compute, 5);
        tick();
    }
    EXPECT_FALSE(detector.passed_deadline_s());
}

TEST_F(Detector, TellsAProcessThatDoesNotRun) {
    steps(0, 5);
    other_runs = false;
    tick(8);
    EXPECT_EQ(detector.report().ranks[0].silent_s, 0);
    EXPECT_EQ(detector.report().ranks[1].silent_s, 2);
}

TEST_F(Detector, TheFirstStepMayTakeTenTimesAsLong) {
    for (PhaseBoard* const board : {&mine, &other}) board->enter(Phase::compute, 7);
    tick(80);
    EXPECT_FALSE(detector.passed_deadline_s());
    tick();
    EXPECT_EQ(detector.passed_deadline_s(), 20);
}

TEST_F(Detector, LongStepsHaveALongDeadline) {
    longest_step_s = 1;
    steps(0, 3);
    tick(79);
    EXPECT_FALSE(detector.passed_deadline_s());
    tick();
    EXPECT_EQ(detector.passed_deadline_s(), 20);
}

TEST_F(Detector, FollowsTheCheckpointWriterApart) {
    steps(0, 3);
    other.begin_saving(3);
    for (int i = 0; i < 80; ++i) {
        steps(3 + i, 4 + i);
        EXPECT_FALSE(detector.passed_deadline_s());
    }
    steps(83, 84);
    EXPECT_EQ(detector.passed_deadline_s(), 20);
    EXPECT_EQ(detector.report().ranks[1].saving, 3);
    EXPECT_EQ(detector.report().ranks[1].saving_s, 20);
    EXPECT_FALSE(detector.report().ranks[0].saving);
    other.end_saving();
    steps(84, 85);
    EXPECT_FALSE(detector.passed_deadline_s());
    EXPECT_FALSE(detector.report().ranks[1].saving);
}

TEST_F(Detector, AWriterThatEndsAndBeginsAgainGetsOn) {
    steps(0, 3);
    for (int i = 0; i < 100; ++i) {
        other.begin_saving(3 + i);
        steps(3 + i, 4 + i);
        other.end_saving();
    }
    EXPECT_FALSE(detector.passed_deadline_s());
}

TEST_F(Detector, ARankThatHasNotJoinedYetIsNotLate) {
    std::vector<Line> memory(PhaseBoard::bytes_for(3) / sizeof(Line));
    PhaseBoard early;
    early.join(std::as_writable_bytes(std::span(memory)), 1, 1);
    HangDetector three_rows(2);
    std::vector<PhaseBoard::Row> rows;
    for (int i = 0; i < 200; ++i) {
        early.enter(Phase::start, 0);
        early.read(rows);
        three_rows.tick(rows, early.own_row());
    }
    EXPECT_FALSE(three_rows.passed_deadline_s());
    EXPECT_EQ(three_rows.report().ranks.size(), 1U);
}

class ExchangeInTrouble : public parallel::GradientExchange {
  public:
    parallel::BufferPlan const& plan() const override { return plan_; }
    std::span<float> buffer(int) override { return {}; }
    void reduce(parallel::Consume const&) override {}
    std::string name() const override { return "none"; }
    char const* trouble() const override { return "the cable is cut"; }

  private:
    parallel::BufferPlan plan_;
};

TEST(WatchdogDeathTest, EndsALaunchWhoseExchangeFailedWhileNobodyWaitedForIt) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    auto const train_on = [] {
        Watchdog watchdog(60);
        ExchangeInTrouble const exchange;
        Watchdog::ExchangeWatch const exchange_watch(watchdog, exchange);
        std::this_thread::sleep_for(30s);
        _exit(1);
    };
    EXPECT_EXIT(train_on(), testing::ExitedWithCode(75), "the gradient exchange failed: the cable is cut");
}

TEST(Watchdog, LetsTheThreadThatTrainsSayItItself) {
    Watchdog watchdog(60);
    ExchangeInTrouble const exchange;
    {
        Watchdog::ExchangeWatch const exchange_watch(watchdog, exchange);
        std::this_thread::sleep_for(500ms);
    }
    std::this_thread::sleep_for(1s);
}

TEST(PhaseBoard, KeepsWhatARankIsAtWhenItJoinsAndLeaves) {
    struct alignas(64) Line {
        std::byte bytes[64]{};
    };
    std::vector<Line> memory(PhaseBoard::bytes_for(2) / sizeof(Line));
    PhaseBoard board(3);
    std::vector<PhaseBoard::Row> rows;
    auto const own = [&] {
        board.read(rows);
        return rows[board.own_row()];
    };
    board.set_waiting(true);
    EXPECT_TRUE(own().is_waiting);
    board.join(std::as_writable_bytes(std::span(memory)), 1, 3);
    EXPECT_EQ(rows.size(), 1U);
    EXPECT_TRUE(own().is_waiting);
    EXPECT_EQ(rows.size(), 2U);
    std::int64_t const large = std::int64_t{1} << 40;
    board.enter(Phase::shutdown, large);
    EXPECT_EQ(own().step, large);
    EXPECT_EQ(own().phase, Phase::shutdown);
    EXPECT_FALSE(own().is_waiting);
    board.leave();
    EXPECT_EQ(own().step, large);
    EXPECT_EQ(own().rank, 3);
    EXPECT_EQ(rows.size(), 1U);
}

TEST(PhaseBoard, MeasuresStepsWithoutWhatComesBetweenThem) {
    PhaseBoard board;
    std::vector<PhaseBoard::Row> rows;
    auto const longest_s = [&] {
        board.read(rows);
        return rows[0].longest_step_s;
    };
    board.enter(Phase::start, 0);
    board.enter(Phase::data, 0);
    board.enter(Phase::compute, 0);
    EXPECT_EQ(longest_s(), 0) << "the first step is not done";
    board.enter(Phase::evaluate, 1);
    double const first = longest_s();
    EXPECT_GT(first, 0);
    std::this_thread::sleep_for(50ms);
    board.enter(Phase::data, 1);
    EXPECT_EQ(longest_s(), first);
    std::this_thread::sleep_for(50ms);
    board.enter(Phase::data, 2);
    EXPECT_GE(longest_s(), 0.05);
}

TEST(PhaseBoard, OneRankSpeaksForTheHost) {
    struct alignas(64) Line {
        std::byte bytes[64]{};
    };
    std::vector<Line> memory(PhaseBoard::bytes_for(2) / sizeof(Line));
    PhaseBoard first, second;
    first.join(std::as_writable_bytes(std::span(memory)), 0, 0);
    second.join(std::as_writable_bytes(std::span(memory)), 1, 1);
    EXPECT_FALSE(first.report_is_claimed());
    EXPECT_TRUE(second.claim_report());
    EXPECT_FALSE(first.claim_report());
    EXPECT_TRUE(first.report_is_claimed());
    EXPECT_FALSE(first.reported());
    second.set_reported(93);
    EXPECT_EQ(first.reported(), 93);
}

TEST(PhaseBoard, PhasesHaveNames) {
    for (Phase const phase : {Phase::start, Phase::data, Phase::compute, Phase::exchange, Phase::record,
                              Phase::evaluate, Phase::check, Phase::save, Phase::shutdown})
        EXPECT_EQ(phase_named(name_of(phase)), phase);
    EXPECT_FALSE(phase_named("lunch"));
}

}  // namespace
}  // namespace holdfast::train
