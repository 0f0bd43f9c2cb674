// SPDX-License-Identifier: Apache-2.0
// The official CIFAR-10 binary folder: data_batch_1.bin to data_batch_5.bin and test_batch.bin, each 10,000
// records of one label byte and 3,072 pixel bytes (red, green, blue planes). Source:
// https://www.cs.toronto.edu/~kriz/cifar.html
//
// Opening reads every byte once and checks it. Pixels are then read from the open files at need: the page
// cache holds them once per host, however many ranks there are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/image_dataset.hpp"

namespace holdfast::data {

/// "airplane" to "truck", by label.
std::vector<std::string> const& cifar10_class_names();

/// `folder` is or holds cifar-10-batches-bin. Throws Error(do_not_requeue) that names file, offset, what was
/// expected and what was found; Error(retry) for errors of the device or the network.
TrainAndTest open_cifar10(std::filesystem::path const& folder);

}  // namespace holdfast::data
