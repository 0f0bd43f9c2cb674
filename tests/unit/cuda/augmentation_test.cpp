// SPDX-License-Identifier: Apache-2.0
#include "cuda/augmentation.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace holdfast::cuda {
namespace {

TEST(Philox, AnswersAsRandom123) {
    struct Known {
        PhiloxKey key;
        PhiloxBlock counter;
        PhiloxBlock answer;
    };
    // Source: Random123, tests/kat_vectors, the rows of "philox4x32 10".
    Known const known[] = {
        {{{0, 0}}, {{0, 0, 0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff}},
         {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0xa4093822, 0x299f31d0}},
         {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (Known const& row : known) {
        PhiloxBlock const answer = philox4x32_10(row.key, row.counter);
        for (int i = 0; i < 4; ++i) EXPECT_EQ(answer.word[i], row.answer.word[i]);
    }
}

int number_of(CropFlip const& crop) {
    return ((crop.dy + crop_padding) * 9 + crop.dx + crop_padding) * 2 + (crop.flip ? 1 : 0);
}

TEST(DrawCropFlip, GivesEveryCropAndFlipEquallyOften) {
    constexpr int draws_per_choice = 1000;
    std::array<int, 9 * 9 * 2> counts{};
    for (std::int64_t sample = 0; sample < draws_per_choice * std::ssize(counts); ++sample) {
        CropFlip const crop = draw_crop_flip(5, 3, sample);
        ASSERT_LE(std::abs(crop.dy), crop_padding);
        ASSERT_LE(std::abs(crop.dx), crop_padding);
        ++counts[static_cast<std::size_t>(number_of(crop))];
    }
    double chi_squared = 0;
    for (int const count : counts)
        chi_squared += (count - draws_per_choice) * (count - draws_per_choice) / double{draws_per_choice};
    EXPECT_LT(chi_squared, 161 + 4 * 17.9);  // 161 degrees of freedom: mean 161, deviation sqrt(2 * 161)
}

TEST(DrawCropFlip, DependsOnEveryPartOfSeedEpochAndSample) {
    auto const draws = [](std::uint64_t seed, std::int64_t epoch, std::int64_t first_sample) {
        std::vector<int> numbers;
        for (std::int64_t i = 0; i < 20; ++i)
            numbers.push_back(number_of(draw_crop_flip(seed, epoch, first_sample + i)));
        return numbers;
    };
    constexpr std::int64_t beyond_32_bits = std::int64_t{1} << 32;
    std::vector<std::vector<int>> all{draws(0, 0, 0),
                                      draws(1, 0, 0),
                                      draws(0, 1, 0),
                                      draws(0, 0, 20),
                                      draws(std::uint64_t{1} << 32, 0, 0),
                                      draws(0, beyond_32_bits, 0),
                                      draws(0, 0, beyond_32_bits)};
    EXPECT_EQ(all.front(), draws(0, 0, 0));
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

TEST(CroppedPixel, IsThatOfAPaddedThenCroppedThenMirroredImage) {
    constexpr int height = 6, width = 5, padded_width = width + 2 * crop_padding;
    std::vector<std::uint8_t> image;
    for (int i = 0; i < height * width; ++i) image.push_back(static_cast<std::uint8_t>(i + 1));
    std::vector<std::uint8_t> padded(static_cast<std::size_t>((height + 2 * crop_padding) * padded_width));
    for (int y = 0; y < height; ++y)
        std::copy_n(image.begin() + y * width, width,
                    padded.begin() + (y + crop_padding) * padded_width + crop_padding);
    for (int top = 0; top <= 2 * crop_padding; ++top)
        for (int left = 0; left <= 2 * crop_padding; ++left)
            for (bool const flip : {false, true})
                for (int y = 0; y < height; ++y) {
                    auto const row = padded.begin() + (top + y) * padded_width + left;
                    std::vector<std::uint8_t> expected(row, row + width);
                    if (flip) std::reverse(expected.begin(), expected.end());
                    CropFlip const crop{top - crop_padding, left - crop_padding, flip};
                    for (int x = 0; x < width; ++x)
                        EXPECT_EQ(cropped_pixel(image.data(), height, width, crop, y, x),
                                  expected[static_cast<std::size_t>(x)]);
                }
}

}  // namespace
}  // namespace holdfast::cuda
