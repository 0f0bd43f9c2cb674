// SPDX-License-Identifier: Apache-2.0
#include "optim/learning_rate.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace holdfast::optim {
namespace {

using enum ScheduleShape;

double stepwise(double lr, std::int64_t step_size, double gamma, std::int64_t epoch) {
    return learning_rate_at({.lr = lr, .step_size = step_size, .gamma = gamma}, epoch);
}

TEST(StepSchedule, HasTheBitsOfTorch) {
    // torch.optim.lr_scheduler.StepLR(step_size=5, gamma=0.1) from 0.1, printed by torch 2.15.
    double const of_torch[] = {0.1, 0.010000000000000002, 0.0010000000000000002, 0.00010000000000000003,
                               1.0000000000000004e-05};
    for (std::int64_t epoch = 0; epoch < 25; ++epoch)
        EXPECT_EQ(stepwise(0.1, 5, 0.1, epoch), of_torch[epoch / 5]) << epoch;
    EXPECT_NE(of_torch[4], 0.1 * std::pow(0.1, 4)) << "a power would do as well here";
}

TEST(StepSchedule, IsMultipliedDecayByDecay) {
    double rate = 0.3;
    for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
        if (epoch > 0 && epoch % 3 == 0) rate *= 0.7;
        EXPECT_EQ(stepwise(0.3, 3, 0.7, epoch), rate) << epoch;
    }
}

TEST(StepSchedule, IsTheSameInAllStepsOfAnEpoch) {
    Schedule const schedule{.lr = 1, .step_size = 2, .gamma = 0.5, .steps_per_epoch = 7};
    for (std::int64_t step = 0; step < 50; ++step)
        EXPECT_EQ(learning_rate_at(schedule, step), std::pow(0.5, step / 14)) << step;
}

TEST(StepSchedule, Edges) {
    EXPECT_EQ(stepwise(0.5, 1, 1.0, 1000), 0.5);
    EXPECT_EQ(stepwise(0.5, 7, 0.0, 6), 0.5);
    EXPECT_EQ(stepwise(0.5, 7, 0.0, 7), 0.0);
    EXPECT_EQ(stepwise(0.5, 1, 0.5, 3), 0.0625);
}

void expect_rates(Schedule const& schedule, std::vector<double> const& expected) {
    for (std::size_t step = 0; step < expected.size(); ++step)
        EXPECT_NEAR(learning_rate_at(schedule, static_cast<std::int64_t>(step)), expected[step],
                    1e-15 * schedule.lr)
            << step;
}

TEST(OneCycle, IsTorchs) {
    // torch.optim.lr_scheduler.OneCycleLR(max_lr=0.3, cycle_momentum=False), printed by torch 2.15: total_steps=10,
    // pct_start=0.3, and total_steps=6, pct_start=0.
    expect_rates(
        {.shape = one_cycle, .lr = 0.3, .warmup_steps = 3, .total_steps = 10},
        {0.01200000000000001, 0.156, 0.3, 0.2851453896040421, 0.24352369618492894, 0.18337860658088678,
         0.11662259341911323, 0.05647750381507109, 0.014855810395957887, 1.2e-06});
    expect_rates({.shape = one_cycle, .lr = 0.3, .total_steps = 6},
                 {0.2799038909524235, 0.22500030000000001, 0.1500006, 0.07500090000000004,
                  0.020097309047576464, 1.2e-06});
}

TEST(Cosine, AfterAWarmUpIsTorchs) {
    // torch's SequentialLR of LinearLR(start_factor=1/4, total_iters=3) and CosineAnnealingLR(T_max=6), milestone 4, printed by
    // torch 2.15.
    expect_rates({.shape = cosine, .lr = 0.3, .warmup_steps = 4, .total_steps = 10},
                 {0.075, 0.15, 0.22499999999999998, 0.29999999999999993, 0.3, 0.27990381056766583,
                  0.22500000000000003, 0.15000000000000002, 0.07500000000000004, 0.020096189432334197});
}

TEST(WarmUp, ComesBeforeTheStepsToo) {
    expect_rates({.lr = 0.5, .step_size = 2, .gamma = 0.1, .warmup_steps = 2, .steps_per_epoch = 2},
                 {0.25, 0.5, 0.5, 0.5, 0.05, 0.05});
}

TEST(LearningRate, IsFiniteAtEveryStepOfTheShortestRuns) {
    for (ScheduleShape const shape : {step, cosine, one_cycle})
        for (std::int64_t total_steps = 0; total_steps < 4; ++total_steps)
            for (std::int64_t warmup_steps = 0; warmup_steps <= total_steps; ++warmup_steps)
                for (std::int64_t now = 0; now <= total_steps + 1; ++now) {
                    double const rate = learning_rate_at({.shape = shape,
                                                          .lr = 0.25,
                                                          .warmup_steps = warmup_steps,
                                                          .total_steps = total_steps},
                                                         now);
                    EXPECT_TRUE(0 <= rate && rate <= 0.25)
                        << rate << " at " << now << " of " << total_steps << ", warm-up " << warmup_steps;
                }
}

TEST(CosineOfHalfTurns, IsTheCosine) {
    constexpr double pi = 3.14159265358979323846;
    for (int i = 0; i <= 10000; ++i)
        EXPECT_NEAR(cosine_of_half_turns(i / 1e4), std::cos(pi * (i / 1e4)), 1e-15) << i;
    EXPECT_EQ(cosine_of_half_turns(0), 1);
    EXPECT_EQ(cosine_of_half_turns(0.5), 0);
    EXPECT_EQ(cosine_of_half_turns(1), -1);
}

}  // namespace
}  // namespace holdfast::optim
