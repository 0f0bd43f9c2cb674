// SPDX-License-Identifier: Apache-2.0
// A labelled image set in one HDF5 file: per split, all JPEGs one after the other, where each begins, and the labels.
//
//   /train/jpeg     u8  [total bytes]   chunked, deflated: a small JPEG is mostly headers, which are all the same
//   /train/offsets  i64 [images + 1]    image i is jpeg[offsets[i], offsets[i + 1])
//   /train/labels   u8  [images]
//   /test/...                           likewise
//   /class_names    u8  [bytes]         UTF-8, one name a line, by label
//   attributes format = "holdfast-images", version = 1
//
// Opening checks everything and decodes every image into memory. The file is untrusted input.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "data/image_dataset.hpp"

namespace holdfast::data {

/// Throws Error(do_not_requeue) that names file, dataset and image.
TrainAndTest open_packed_images(std::filesystem::path const& file);

/// The same from the bytes of a file; `name` is what messages call it.
TrainAndTest decode_packed_images(std::vector<std::byte> bytes, std::string name);

/// Packs the images as JPEGs of this quality (1 to 100) and replaces `out` in one step, or leaves it as it
/// was. Equal images give equal bytes with the same versions of libjpeg-turbo, zlib and HDF5.
void pack_images(ImageDataset const& train, ImageDataset const& test, std::filesystem::path const& out,
                 int quality = 75);

}  // namespace holdfast::data
