// SPDX-License-Identifier: Apache-2.0
// How the images of a batch become the input of the network, from pixels in device memory: taken by sample, augmented and
// normalized in one pass, in the order and type that the network wants. Value by value, so that the kernel and the host
// implementation are the same code, with the bytes of the loader on the host. C++17.
#pragma once

#include <cstdint>

#include "cuda/augmentation.hpp"
#include "cuda/bfloat16.hpp"

namespace holdfast::cuda {

enum class ImageOrder { nchw, nhwc };
enum class ImageType { float32, bfloat16 };

struct ImageFormat {
    ImageOrder order = ImageOrder::nchw;
    ImageType type = ImageType::float32;
};

struct ImageTransform {
    static constexpr int max_channels = 4;
    int channels = 0;
    int height = 0;
    int width = 0;
    float mean[max_channels] = {};
    float stddev[max_channels] = {};
    bool crop_flip = false;  ///< by draw_crop_flip
    std::uint64_t seed = 0;

    HOLDFAST_HOST_DEVICE int num_values() const { return channels * height * width; }
};

/// The samples of a batch, in device memory.
struct BatchSource {
    std::int64_t const* samples_N = nullptr;
    std::int64_t const* labels_N = nullptr;
    /// Of the whole set, by sample number; otherwise of this batch alone, in its order.
    std::uint8_t const* pixels_NCHW = nullptr;
    bool has_whole_set = false;
    std::int64_t count = 0;
    std::int64_t epoch = 0;
    ImageTransform transform;
};

/// Elements first, first + stride, ... of image n of the batch, at images[n]: float32 or bfloat16, all images densely one after
/// the other.
HOLDFAST_HOST_DEVICE inline void write_image(BatchSource const& source, ImageFormat format, void* images,
                                             std::int64_t n, int first, int stride) {
    ImageTransform const& t = source.transform;
    std::int64_t const sample = source.samples_N[n];
    CropFlip const crop = t.crop_flip ? draw_crop_flip(t.seed, source.epoch, sample) : CropFlip{};
    int const plane = t.height * t.width;
    std::uint8_t const* const image_CHW =
        source.pixels_NCHW + (source.has_whole_set ? sample : n) * t.num_values();
    for (int i = first; i < t.num_values(); i += stride) {
        int const channel = format.order == ImageOrder::nchw ? i / plane : i % t.channels;
        int const place = format.order == ImageOrder::nchw ? i % plane : i / t.channels;
        float const value = normalized_pixel(cropped_pixel(image_CHW + channel * plane, t.height, t.width,
                                                           crop, place / t.width, place % t.width),
                                             t.mean[channel], t.stddev[channel]);
        std::int64_t const at = n * t.num_values() + i;
        if (format.type == ImageType::float32)
            static_cast<float*>(images)[at] = value;
        else
            static_cast<std::uint16_t*>(images)[at] = bfloat16_bits(value);
    }
}

}  // namespace holdfast::cuda
