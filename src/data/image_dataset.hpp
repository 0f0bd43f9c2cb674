// SPDX-License-Identifier: Apache-2.0
// A labelled set of equally sized 8-bit images, random access by sample number. Implementations are read-only
// and safe to read from several threads. Shape letters used everywhere: N batch, C channel, H height, W
// width, K classes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/digest.hpp"

namespace holdfast::data {

struct ImageShape {
    int channels = 3;
    int height = 32;
    int width = 32;
    std::int64_t num_values() const { return std::int64_t{channels} * height * width; }
    friend bool operator==(ImageShape const&, ImageShape const&) = default;
};

class ImageDataset {
  public:
    virtual ~ImageDataset() = default;
    virtual std::int64_t size() const = 0;
    virtual ImageShape shape() const = 0;
    virtual std::vector<std::string> const& class_names() const = 0;
    virtual std::int64_t label(std::int64_t sample) const = 0;
    /// Writes the pixels of `sample` in CHW order; `pixels_CHW` has exactly shape().num_values() elements.
    virtual void read(std::int64_t sample, std::span<std::uint8_t> pixels_CHW) const = 0;
    /// For people: "CIFAR-10 (50000 training images in /data/cifar-10-batches-bin)".
    virtual std::string description() const = 0;
};

/// Digest of all decoded pixels and labels in sample order: equal for equal data, wherever and however it is
/// stored.
Digest digest_of(ImageDataset const& dataset);

/// Of both sets of a run.
Digest digest_of(ImageDataset const& train_set, ImageDataset const& test_set);

struct TrainAndTest {
    std::unique_ptr<ImageDataset> train;
    std::unique_ptr<ImageDataset> test;
};

/// `spec` is "sample" (the embedded set), "synthetic" or "synthetic:N" (N training images), a packed .h5
/// file, or a folder that is or holds cifar-10-batches-bin. limit_train and limit_test keep the first so many
/// samples (0: all). Everything is checked before this returns; throws Error(do_not_requeue) that names file
/// and offset.
TrainAndTest open_datasets(std::string const& spec, std::int64_t limit_train, std::int64_t limit_test);

}  // namespace holdfast::data
