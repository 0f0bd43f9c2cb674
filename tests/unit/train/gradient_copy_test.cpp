// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_copy.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "support/random_floats.hpp"

namespace holdfast::train {
namespace {

using test::equal_bytes;
using test::random_floats;
using Limits = std::numeric_limits<float>;

constexpr float third = 1.0f / 3.0f;
std::size_t const sizes[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 1000};

float rounded_product(float a, float b) {
    return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}

TEST(CopyScaled, ScalesEveryElement) {
    for (std::size_t size : sizes) {
        std::vector<float> const source = random_floats(size, 1);
        std::vector<float> target(size, Limits::quiet_NaN());
        std::vector<float> expected(size);
        for (std::size_t i = 0; i < size; ++i) expected[i] = rounded_product(third, source[i]);
        EXPECT_TRUE(copy_scaled(target, source, third));
        EXPECT_TRUE(equal_bytes(target, expected)) << size;
    }
}

TEST(CopyScaled, ByOneIsACopy) {
    std::vector<float> const source = random_floats(100, 1);
    std::vector<float> target(100);
    EXPECT_TRUE(copy_scaled(target, source, 1.0f));
    EXPECT_TRUE(equal_bytes(target, source));
}

TEST(AddScaled, HasTheBitsOfALeafWrittenFirstAndAddedLater) {
    for (std::size_t size : sizes) {
        std::vector<float> const source = random_floats(size, 1);
        std::vector<float> const before = random_floats(size, 2);
        std::vector<float> leaf(size);
        copy_scaled(leaf, source, third);
        std::vector<float> expected = before;
        for (std::size_t i = 0; i < size; ++i) expected[i] += leaf[i];
        std::vector<float> target = before;
        EXPECT_TRUE(add_scaled(target, source, third));
        EXPECT_TRUE(equal_bytes(target, expected)) << size;

        std::vector<float> fused = before;
        for (std::size_t i = 0; i < size; ++i) fused[i] = std::fmaf(third, source[i], fused[i]);
        if (size == 1000) {
            EXPECT_FALSE(equal_bytes(fused, expected)) << "these numbers would not notice a fused addition";
        }
    }
}

TEST(GradientCopy, FindsWhatIsNotFiniteAtEveryPlace) {
    for (float const bad : {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::signaling_NaN(),
                            Limits::infinity(), -Limits::infinity()})
        for (std::size_t size : {1, 15, 16, 17, 32, 47, 64, 100})
            for (std::size_t at = 0; at < size; ++at) {
                std::vector<float> source = random_floats(size, 1);
                source[at] = bad;
                std::vector<float> target(size);
                EXPECT_FALSE(copy_scaled(target, source, third)) << bad << " at " << at << " of " << size;
                EXPECT_FALSE(add_scaled(target, source, third)) << bad << " at " << at << " of " << size;
                EXPECT_FALSE(all_finite(source)) << bad << " at " << at << " of " << size;
            }
}

TEST(GradientCopy, ExtremeButFiniteIsFinite) {
    for (float const value :
         {Limits::max(), Limits::lowest(), Limits::min(), Limits::denorm_min(), 0.0f, -0.0f}) {
        std::vector<float> const source(33, value);
        std::vector<float> target(33);
        EXPECT_TRUE(copy_scaled(target, source, third)) << value;
        EXPECT_TRUE(add_scaled(target, source, third)) << value;
        EXPECT_TRUE(all_finite(source)) << value;
    }
    EXPECT_TRUE(all_finite({}));
}

}  // namespace
}  // namespace holdfast::train
