// SPDX-License-Identifier: Apache-2.0
#include "optim/moving_average.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "support/random_floats.hpp"

namespace holdfast::optim {
namespace {

TEST(AverageWeight, FallsToWhatTheDecayLeaves) {
    EXPECT_EQ(average_weight_at(0.99, 0), 1 - 0.1);
    EXPECT_EQ(average_weight_at(0.99, 8), 1 - 9.0 / 18);
    EXPECT_GT(average_weight_at(0.99, 889), 1 - 0.99);
    for (std::int64_t const step : {890, 891, 1'000'000}) EXPECT_EQ(average_weight_at(0.99, step), 1 - 0.99);
    EXPECT_EQ(average_weight_at(0, 5), 1);
}

TEST(UpdateAverage, HasTheBitsOfTorchLerp) {
    // torch.lerp(a, b, weight) of float32 tensors, printed by torch 2.15 as hexadecimal.
    struct Row {
        float weight, average, value, of_torch;
    };
    Row const rows[] = {
        {0.01f, 0x1.529ccp-1f, -0x1.cec07p-2f, 0x1.4ce994p-1f},
        {0.01f, 0x1.11548ep-2f, -0x1.543c16p-3f, 0x1.0ce554p-2f},
        {0.3f, -0x1.07115cp+0f, -0x1.906754p-3f, -0x1.8e5340p-1f},
        {0.3f, -0x1.204874p-1f, -0x1.ee67d6p-1f, -0x1.5e1eacp-1f},
        {0.5f, -0x1.af4dc8p-2f, 0x1.cb2278p+1f, 0x1.9538c0p+0f},
        {0.5f, -0x1.057a78p-1f, -0x1.d4cf6ep+0f, -0x1.2bc654p+0f},
        {0.9f, 0x1.4d5046p-2f, 0x1.a49976p-2f, 0x1.9bdef2p-2f},
        {0.9f, -0x1.eaa4f8p-2f, -0x1.f9dc12p-1f, -0x1.dfce50p-1f},
    };
    for (Row const& row : rows) {
        std::vector<float> average{row.average};
        update_average(average, std::vector{row.value}, row.weight);
        EXPECT_EQ(average[0], row.of_torch) << row.weight << " " << row.average << " " << row.value;
    }
}

TEST(UpdateAverage, OfFullWeightIsTheValue) {
    std::vector<float> average = test::random_floats(100, 1);
    std::vector<float> const values = test::random_floats(100, 2);
    update_average(average, values, 1);
    EXPECT_TRUE(test::equal_bytes(average, values));
}

}  // namespace
}  // namespace holdfast::optim
