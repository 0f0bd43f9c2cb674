// SPDX-License-Identifier: Apache-2.0
#include "train/save_schedule.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace holdfast::train {
namespace {

constexpr std::int64_t steps_per_epoch = 5;

/// The steps of [1, 20] that are saved, if each takes `step_s` and every save succeeds at once.
std::vector<std::int64_t> saved_steps(SaveEvery every, double step_s, double cost_s) {
    SaveSchedule schedule(every, steps_per_epoch, 0);
    std::vector<std::int64_t> saved;
    for (std::int64_t step = 1; step <= 20; ++step) {
        double const now_s = static_cast<double>(step) * step_s;
        if (!schedule.is_due_after(step, now_s)) continue;
        schedule.save_started(now_s);
        schedule.save_done(cost_s);
        saved.push_back(step);
    }
    return saved;
}

using Steps = std::vector<std::int64_t>;

TEST(SaveSchedule, FollowsTheFlags) {
    EXPECT_EQ(saved_steps({{}, 7, {}}, 1, 9), (Steps{7, 14}));
    EXPECT_EQ(saved_steps({2, {}, {}}, 1, 9), (Steps{10, 20}));
    EXPECT_EQ(saved_steps({2, 7, {}}, 1, 9), (Steps{7, 10, 14, 20}));
    EXPECT_EQ(saved_steps({{}, {}, 0.1}, 1, 9), (Steps{6, 12, 18}));
    EXPECT_EQ(saved_steps({0, {}, {}}, 1e6, 0), Steps{});
}

TEST(SaveSchedule, AutomaticallyCostsAtMostOnePercent) {
    EXPECT_EQ(saved_steps({}, 1, 0.01), (Steps{5, 10, 15, 20}));  // cheap: at every epoch's end
    EXPECT_EQ(saved_steps({}, 1, 0.06), (Steps{5, 15}));          // 6 s between saves: every second one
    EXPECT_EQ(saved_steps({}, 30, 0.01),
              (Steps{2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19, 20}));  // and once a minute
    EXPECT_EQ(saved_steps({}, 30, 2), (Steps{2, 9, 16}));           // unless that is too often
}

TEST(SaveSchedule, WhatASlowDiskDelaysStaysDue) {
    SaveSchedule schedule({{}, 7, {}}, steps_per_epoch, 0);
    EXPECT_FALSE(schedule.is_due_after(6, 6));
    EXPECT_TRUE(schedule.is_due_after(7, 7));
    EXPECT_TRUE(schedule.is_due_after(8, 8));
    schedule.save_started(8);
    EXPECT_FALSE(schedule.is_due_after(9, 9));
}

TEST(SaveSchedule, AFailedSaveIsTriedAgain) {
    SaveSchedule schedule({{}, 1000, {}}, steps_per_epoch, 0);
    schedule.save_started(10);
    schedule.save_failed(11);
    EXPECT_FALSE(schedule.is_due_after(12, 12));
    EXPECT_TRUE(schedule.is_due_after(13, 11 + SaveSchedule::retry_after_s));
    schedule.save_started(50);
    EXPECT_FALSE(schedule.is_due_after(14, 1000));
}

}  // namespace
}  // namespace holdfast::train
