// SPDX-License-Identifier: Apache-2.0
// JPEG with libjpeg-turbo, whose default error handling ends the process: here every error, and every warning
// about damaged data, is an exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "data/image_dataset.hpp"

namespace holdfast::data {

/// What libjpeg says about bytes it does not like.
class JpegError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// Baseline JPEG with 4:2:0 chroma and the standard Huffman tables: headers are then all the same, and
/// deflate over many small images removes them (data/README.md). `pixels_CHW` is RGB in CHW order, quality in
/// [1, 100].
std::vector<std::uint8_t> encode_jpeg(std::span<std::uint8_t const> pixels_CHW, ImageShape shape,
                                      int quality);

/// Shape of the decoded image (always 3 channels) from the header alone.
ImageShape jpeg_shape(std::span<std::uint8_t const> jpeg);

/// Decodes to RGB in CHW order. Throws JpegError if the image is damaged or its shape is not `shape`.
void decode_jpeg(std::span<std::uint8_t const> jpeg, ImageShape shape, std::span<std::uint8_t> pixels_CHW);

}  // namespace holdfast::data
