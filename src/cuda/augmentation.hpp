// SPDX-License-Identifier: Apache-2.0
// How a stored pixel becomes an input of the network, pixel by pixel, for the loader on the host and the kernels on the device
// alike: random crop and flip, then normalization. What is drawn is a function of (seed, epoch, sample).
#pragma once

#include <cstdint>

#include "cuda/philox.hpp"

namespace holdfast::cuda {

/// The crop begins dy rows below and dx columns right of the image's corner, and is then mirrored from left to right if `flip`.
/// Default: the image itself.
struct CropFlip {
    int dy = 0;
    int dx = 0;
    bool flip = false;
};

/// Black pixels around the image before it is cropped to its own size. Source: the usual augmentation of CIFAR-10 (He et al.,
/// "Deep residual learning", 2016, section 4.2).
constexpr int crop_padding = 4;

/// dy and dx uniform in [-crop_padding, crop_padding], flip with probability 1/2.
HOLDFAST_HOST_DEVICE inline CropFlip draw_crop_flip(std::uint64_t seed, std::int64_t epoch,
                                                    std::int64_t sample) {
    std::uint64_t const e = static_cast<std::uint64_t>(epoch);
    std::uint64_t const s = static_cast<std::uint64_t>(sample);
    PhiloxBlock const random =
        philox4x32_10({{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}},
                      {{static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(s >> 32),
                        static_cast<std::uint32_t>(e), static_cast<std::uint32_t>(e >> 32)}});
    constexpr std::uint64_t choices = 2 * crop_padding + 1;
    // The upper word of a product is uniform but for 9 in 2^32, and needs no second draw.
    return {static_cast<int>(choices * random.word[0] >> 32) - crop_padding,
            static_cast<int>(choices * random.word[1] >> 32) - crop_padding, random.word[2] >> 31 != 0};
}

/// Pixel (y, x) of the crop of one channel, `plane_HW`; 0 outside the image. For the same offsets and flip that of torchvision's
/// RandomCrop(size, padding=4) followed by RandomHorizontalFlip.
HOLDFAST_HOST_DEVICE inline std::uint8_t cropped_pixel(std::uint8_t const* plane_HW, int height, int width,
                                                       CropFlip const& crop, int y, int x) {
    int const from_y = y + crop.dy;
    int const from_x = (crop.flip ? width - 1 - x : x) + crop.dx;
    bool const is_inside = 0 <= from_y && from_y < height && 0 <= from_x && from_x < width;
    return is_inside ? plane_HW[static_cast<std::int64_t>(from_y) * width + from_x] : std::uint8_t{0};
}

/// (pixel / 255 - mean) / stddev in float32, the very bits of torchvision's ToTensor + Normalize.
HOLDFAST_HOST_DEVICE inline float normalized_pixel(std::uint8_t pixel, float mean, float stddev) {
    // Two divisions: products with reciprocals would round to other bits.
    return (static_cast<float>(pixel) / 255.0f - mean) / stddev;
}

}  // namespace holdfast::cuda
