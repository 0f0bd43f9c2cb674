// SPDX-License-Identifier: Apache-2.0
#include "optim/learning_rate.hpp"

#include <cmath>

#include <gtest/gtest.h>

namespace holdfast::optim {
namespace {

TEST(LearningRate, HasTheBitsOfTorch) {
    // torch.optim.lr_scheduler.StepLR(step_size=5, gamma=0.1) from 0.1, printed by torch 2.15.
    double const of_torch[] = {0.1, 0.010000000000000002, 0.0010000000000000002, 0.00010000000000000003,
                               1.0000000000000004e-05};
    for (std::int64_t epoch = 0; epoch < 25; ++epoch)
        EXPECT_EQ(learning_rate_at({0.1, 5, 0.1}, epoch), of_torch[epoch / 5]) << epoch;
    EXPECT_NE(of_torch[4], 0.1 * std::pow(0.1, 4)) << "a power would do as well here";
}

TEST(LearningRate, IsMultipliedDecayByDecay) {
    StepSchedule const schedule{0.3, 3, 0.7};
    double rate = schedule.lr;
    for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
        if (epoch > 0 && epoch % 3 == 0) rate *= 0.7;
        EXPECT_EQ(learning_rate_at(schedule, epoch), rate) << epoch;
    }
}

TEST(LearningRate, EdgesOfTheSchedule) {
    EXPECT_EQ(learning_rate_at({0.5, 1, 1.0}, 1000), 0.5);
    EXPECT_EQ(learning_rate_at({0.5, 7, 0.0}, 6), 0.5);
    EXPECT_EQ(learning_rate_at({0.5, 7, 0.0}, 7), 0.0);
    EXPECT_EQ(learning_rate_at({0.5, 1, 0.5}, 3), 0.0625);
}

}  // namespace
}  // namespace holdfast::optim
