// SPDX-License-Identifier: Apache-2.0
#include "optim/running_statistics.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "support/random_floats.hpp"

namespace holdfast::optim {
namespace {

using test::equal_bytes;
using test::random_floats;

float product(float a, float b) {
    return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}
float sum(float a, float b) { return static_cast<float>(static_cast<double>(a) + static_cast<double>(b)); }

TEST(RunningStatistics, MeanIsUnfusedAndVarianceFused) {
    for (std::size_t size : {0, 1, 3, 16, 17, 65, 1000}) {
        std::vector<float> const before = random_floats(size, 1);
        std::vector<float> const batch = random_floats(size, 2);
        std::vector<float> unfused(size);
        std::vector<float> fused(size);
        for (std::size_t i = 0; i < size; ++i) {
            unfused[i] = sum(product(0.1f, batch[i]), product(0.9f, before[i]));
            fused[i] = std::fmaf(0.1f, batch[i], product(0.9f, before[i]));
        }
        std::vector<float> mean = before;
        std::vector<float> variance = before;
        update_running_mean(mean, batch);
        update_running_variance(variance, batch);
        EXPECT_TRUE(equal_bytes(mean, unfused)) << size;
        EXPECT_TRUE(equal_bytes(variance, fused)) << size;
        if (size == 1000) {
            EXPECT_FALSE(equal_bytes(unfused, fused)) << "these numbers would not notice a wrong rounding";
        }
    }
}

TEST(RunningStatistics, KeepATenthOfTheBatch) {
    std::vector<float> mean{0.0f, 10.0f};
    update_running_mean(mean, std::vector{1.0f, 0.0f});
    EXPECT_FLOAT_EQ(mean[0], 0.1f);
    EXPECT_FLOAT_EQ(mean[1], 9.0f);
    std::vector<float> variance{1.0f, 10.0f};
    update_running_variance(variance, std::vector{1.0f, 0.0f});
    EXPECT_FLOAT_EQ(variance[0], 1.0f);
    EXPECT_FLOAT_EQ(variance[1], 9.0f);
}

}  // namespace
}  // namespace holdfast::optim
