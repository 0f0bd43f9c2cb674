// SPDX-License-Identifier: Apache-2.0
#include "data/subset.hpp"

#include <gtest/gtest.h>

#include "data/synthetic_images.hpp"
#include "support/expect_error.hpp"

namespace holdfast::data {
namespace {

TEST(FirstSamples, AreTheBeginningOfTheSet) {
    TrainAndTest const whole = synthetic_datasets(50);
    auto const part = first_samples(synthetic_datasets(50).train, 13);
    ASSERT_EQ(part->size(), 13);
    std::vector<std::uint8_t> expected(3072), actual(3072);
    for (std::int64_t i = 0; i < 13; ++i) {
        whole.train->read(i, expected);
        part->read(i, actual);
        EXPECT_EQ(actual, expected);
        EXPECT_EQ(part->label(i), whole.train->label(i));
    }
    EXPECT_EQ(part->description(), "the first 13 of synthetic (50 training images)");
    EXPECT_EQ(digest_of(*first_samples(synthetic_datasets(50).train, 13)), digest_of(*part));
    EXPECT_NE(digest_of(*part), digest_of(*whole.train));
}

TEST(FirstSamples, AreTheWholeSetIfItHasNoMore) {
    EXPECT_EQ(first_samples(synthetic_datasets(50).train, 50)->size(), 50);
    EXPECT_EQ(first_samples(synthetic_datasets(50).train, 51)->size(), 50);
}

TEST(BalancedSubset, HasTheFirstOfEachClassInTheOrderOfTheSet) {
    auto const part = balanced_subset(synthetic_datasets(55).train, 2);
    ASSERT_EQ(part->size(), 20);
    for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(part->label(i), i % 10);
    EXPECT_EQ(digest_of(*part), digest_of(*first_samples(synthetic_datasets(55).train, 20)));
}

TEST(BalancedSubset, RefusesMoreThanAClassHas) {
    test::expect_error([] { balanced_subset(synthetic_datasets(55).train, 6); },
                       {"5 images of class 5 (pattern5)"});
}

}  // namespace
}  // namespace holdfast::data
