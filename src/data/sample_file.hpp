// SPDX-License-Identifier: Apache-2.0
// Where the image set that comes with Holdfast lies ("--data sample").
#pragma once

#include <filesystem>

namespace holdfast::data {

/// HOLDFAST_SAMPLE if set; else share/holdfast/cifar10-sample.h5 beside `program`'s bin/, so that an
/// installed tree can be moved; else data/cifar10-sample.h5 of the source tree it was built from. Throws
/// Error(do_not_requeue) that lists where it looked.
std::filesystem::path find_sample_file(std::filesystem::path const& program = "/proc/self/exe");

}  // namespace holdfast::data
