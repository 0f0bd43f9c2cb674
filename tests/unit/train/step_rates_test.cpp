// SPDX-License-Identifier: Apache-2.0
#include "train/step_rates.hpp"

#include <gtest/gtest.h>

namespace holdfast::train {
namespace {

TEST(LearningRateSchedule, CountsEpochsInSteps) {
    Settings settings;
    settings.lr = 0.3;
    settings.lr_step_size = 2;
    settings.lr_gamma = 0.5;
    settings.warmup_epochs = 1;
    settings.epochs = 6;
    optim::Schedule const schedule = learning_rate_schedule(settings, 10);
    EXPECT_EQ(schedule.shape, optim::ScheduleShape::step);
    EXPECT_EQ(schedule.lr, 0.3);
    EXPECT_EQ(schedule.step_size, 2);
    EXPECT_EQ(schedule.gamma, 0.5);
    EXPECT_EQ(schedule.warmup_steps, 10);
    EXPECT_EQ(schedule.steps_per_epoch, 10);
    EXPECT_EQ(schedule.total_steps, 60);
    settings.lr_schedule = "cosine";
    EXPECT_EQ(learning_rate_schedule(settings, 10).shape, optim::ScheduleShape::cosine);
    settings.lr_schedule = "one-cycle";
    EXPECT_EQ(learning_rate_schedule(settings, 10).shape, optim::ScheduleShape::one_cycle);
}

TEST(LearningRateSchedule, IsThatOfTheEpochsWhereMaxStepsEndsTheRunBefore) {
    Settings settings;
    settings.lr_schedule = "cosine";
    settings.max_steps = 7;
    EXPECT_EQ(learning_rate_schedule(settings, 10).total_steps, 150);
}

TEST(SgdRates, FollowSettingsAndStep) {
    Settings settings;
    settings.momentum = 0.8;
    settings.nesterov = true;
    settings.weight_decay = 0.001;
    settings.ema_decay = 0.95;
    optim::SgdRates const rates = sgd_rates(settings, 0.3, 5);
    EXPECT_EQ(rates.lr, 0.3f);
    EXPECT_EQ(rates.momentum, 0.8f);
    EXPECT_TRUE(rates.nesterov);
    EXPECT_EQ(rates.weight_decay, 0.001f);
    EXPECT_EQ(rates.average_weight, static_cast<float>(1 - 6.0 / 15));
    EXPECT_EQ(sgd_rates(settings, 0.3, 5000).average_weight, static_cast<float>(1 - 0.95));
}

}  // namespace
}  // namespace holdfast::train
