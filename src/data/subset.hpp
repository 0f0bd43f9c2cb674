// SPDX-License-Identifier: Apache-2.0
// Some samples of another data set, in its order.
#pragma once

#include <cstdint>
#include <memory>

#include "data/image_dataset.hpp"

namespace holdfast::data {

/// The first `num_samples` samples; the set itself if it has no more.
std::unique_ptr<ImageDataset> first_samples(std::unique_ptr<ImageDataset> dataset, std::int64_t num_samples);

/// The first `per_class` samples of each class, in the order of `dataset`.
/// Throws Error(do_not_requeue) if a class has fewer.
std::unique_ptr<ImageDataset> balanced_subset(std::unique_ptr<ImageDataset> dataset, std::int64_t per_class);

}  // namespace holdfast::data
