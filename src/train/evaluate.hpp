// SPDX-License-Identifier: Apache-2.0
// Exact evaluation: each test sample counts once, for any number of ranks and any size. The set is cut into batches of file
// order; each yields one double sum, and the sums are added in batch order, so the result does not depend on who computed it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "data/batch_loader.hpp"
#include "data/image_dataset.hpp"
#include "parallel/communicator.hpp"
#include "train/replica_slots.hpp"

namespace holdfast::train {

/// Collective. The same result on all ranks; none if a rank wanted to stop meanwhile, which is asked now and then. `on_device`: the
/// test set's, where the device computes the images.
std::optional<EvaluationSums> collective_evaluate(
    parallel::Communicator const& communicator, ReplicaSlots& slots, data::ImageDataset const& test,
    data::Normalization const& normalization, std::int64_t batch_size,
    std::function<bool()> const& wants_stop = [] { return false; }, data::DeviceImages* on_device = nullptr);

}  // namespace holdfast::train
