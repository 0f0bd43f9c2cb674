// SPDX-License-Identifier: Apache-2.0
#include "data/synthetic_images.hpp"

#include <cstdlib>
#include <limits>

#include <gtest/gtest.h>

#include "support/expect_error.hpp"

namespace holdfast::data {
namespace {

std::vector<std::uint8_t> pixels_of(ImageDataset const& dataset, std::int64_t sample) {
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.shape().num_values()));
    dataset.read(sample, pixels);
    return pixels;
}

TEST(SyntheticImages, NeverChange) {
    TrainAndTest const sets = synthetic_datasets(20);
    EXPECT_EQ(digest_of(*sets.train).hex(), "1959e2352e6a12e260de281a6ebb3568");
    EXPECT_EQ(digest_of(*sets.test).hex(), "1f0e62d72e6d3920b04654ec58d22a2f");
}

TEST(SyntheticImages, DependOnTheSampleAlone) {
    TrainAndTest const few = synthetic_datasets(20);
    TrainAndTest const many = synthetic_datasets(1000);
    auto const last = pixels_of(*many.train, 999);
    EXPECT_EQ(pixels_of(*many.train, 7), pixels_of(*few.train, 7));
    EXPECT_EQ(pixels_of(*many.train, 999), last);
    EXPECT_NE(pixels_of(*many.train, 7), pixels_of(*many.train, 17));
    EXPECT_NE(pixels_of(*many.train, 7), pixels_of(*many.test, 7));
}

TEST(SyntheticImages, HaveAFifthAsManyTestImagesAndAtLeastOne) {
    EXPECT_EQ(synthetic_datasets(2048).test->size(), 409);
    EXPECT_EQ(synthetic_datasets(1).test->size(), 1);
    test::expect_error([] { synthetic_datasets(0); }, {"0 synthetic"});
}

TEST(SyntheticImages, CanBeLearned) {
    // Nearest class mean of 500 training images, the weakest classifier there is, names nearly all test
    // images.
    TrainAndTest const sets = synthetic_datasets(500);
    std::vector<std::vector<double>> mean(10, std::vector<double>(3072, 0.0));
    for (std::int64_t i = 0; i < 500; ++i) {
        auto const pixels = pixels_of(*sets.train, i);
        auto& sum = mean[static_cast<std::size_t>(sets.train->label(i))];
        for (std::size_t k = 0; k < pixels.size(); ++k) sum[k] += pixels[k] / 50.0;
    }
    int correct = 0;
    for (std::int64_t i = 0; i < sets.test->size(); ++i) {
        auto const pixels = pixels_of(*sets.test, i);
        std::size_t best = 0;
        double best_distance = std::numeric_limits<double>::infinity();
        for (std::size_t label = 0; label < 10; ++label) {
            double distance = 0;
            for (std::size_t k = 0; k < pixels.size(); ++k) {
                distance += (pixels[k] - mean[label][k]) * (pixels[k] - mean[label][k]);
            }
            if (distance < best_distance) best = label, best_distance = distance;
        }
        correct += static_cast<std::int64_t>(best) == sets.test->label(i);
    }
    EXPECT_GE(correct, 95);
}

}  // namespace
}  // namespace holdfast::data
