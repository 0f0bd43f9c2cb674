// SPDX-License-Identifier: Apache-2.0
// Made-up images for tests and benchmarks that can be learned: each class has a smooth colour pattern, each
// image adds its own brightness and noise. Every byte is a pure function of (split, sample), in integer
// arithmetic, so it is the same on every machine; no generator is ever advanced.
#pragma once

#include <cstdint>

#include "data/image_dataset.hpp"

namespace holdfast::data {

/// `num_train` training images and a fifth as many (at least one) test images of 10 classes, 3x32x32.
/// Throws Error(do_not_requeue) if num_train < 1.
TrainAndTest synthetic_datasets(std::int64_t num_train);

}  // namespace holdfast::data
