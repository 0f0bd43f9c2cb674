// SPDX-License-Identifier: Apache-2.0
// A bit that flips in memory or in a file raises no error: the host goes on and computes something else. Hosts hold copies of
// the same state and ranks read the same data, so comparing digests finds it, and the host.
#pragma once

#include <cstdint>
#include <string>

#include "data/image_dataset.hpp"
#include "parallel/communicator.hpp"
#include "train/run_state.hpp"

namespace holdfast::train {

/// What is compared, as lines "name digest": parameters, momentum and running statistics.
std::string replica_digests(StateTensors const& tensors);

/// Collective, between two steps. `state_digests` are those of what this rank computes with. Throws AgreedError(do_not_requeue) on all ranks, naming rank and host, if a rank sees other
/// tensors than most, or other data than the run began with. `saved_step` is that of the last good checkpoint, for the message.
void collective_check_replicas(parallel::Communicator const& communicator, RunState const& state,
                               std::string const& state_digests, std::int64_t saved_step,
                               data::ImageDataset const& train_set, data::ImageDataset const& test_set);

}  // namespace holdfast::train
