// SPDX-License-Identifier: Apache-2.0
// What a launch needs to compute: the network, the tensors (host-shared, and on a GPU once more in its memory), the exchange,
// and the slots that run this rank's replicas. Assembled once, for train, eval and bench alike.
#pragma once

#include <memory>

#include "data/batch_loader.hpp"
#include "data/image_dataset.hpp"
#include "parallel/communicator.hpp"
#include "parallel/gradient_exchange.hpp"
#include "parallel/host_shared_memory.hpp"
#include "parallel/launch_table.hpp"
#include "parallel/replica_range.hpp"
#include "train/state_snapshot.hpp"
#include "train/training_step.hpp"

namespace holdfast::train {

/// How many replicas a rank runs at the same time: the cores it may count on / threads per replica, at least 1, at most its
/// replicas; the least over all ranks, because the exchange plans for everybody.
int replica_slots(parallel::LaunchTable const& table, int threads_per_replica);

model::ResNetConfig network_config(Settings const& settings, data::ImageDataset const& dataset);

data::Tail tail_of(Settings const& settings);
parallel::Reduction reduction_of(Settings const& settings);
Precision precision_of(Settings const& settings);

/// What the loader of a rank with these replicas reads for the global steps [first_step, end_step).
data::LoaderPlan loader_plan(Settings const& settings, parallel::ReplicaRange replicas,
                             std::int64_t first_step, std::int64_t end_step);

class TrainingEngine {
  public:
    /// Collective. `settings` are complete (no 0 for replicas or threads). Tensors are zero: initialize or load them next.
    TrainingEngine(parallel::Communicator const& communicator, Settings const& settings,
                   model::ResNetConfig const& config, parallel::LaunchTable const& table,
                   ComputeDevice device = {});

    model::ResNet const& network() const { return network_; }
    /// In host memory. What the replicas compute with lies on the device: TrainingStep::load_state and fetch_state.
    StateTensors const& tensors() const { return tensors_; }
    parallel::GradientExchange& exchange() { return *exchange_; }
    ReplicaSlots& slots() { return *slots_; }
    TrainingStep& training_step() { return *training_step_; }
    parallel::ReplicaRange replicas() const { return replicas_; }

    /// For saving the state while the steps go on; null where it lies in host memory, from which a save copies it itself.
    std::unique_ptr<StateSnapshot> make_snapshot() const;

    /// For batches that the device computes itself (BatchLoader, collective_evaluate); null on a CPU.
    std::unique_ptr<data::DeviceImages> make_device_images(data::ImageDataset const& dataset,
                                                           data::DeviceImages::Plan const& plan) const;

    /// Collective over the host. First weights from the seed; momentum 0, running means 0 and variances 1, averages as these; loaded.
    void initialize(parallel::Communicator const& communicator, std::uint64_t seed);

  private:
    ComputeDevice device_;
    parallel::ReplicaRange replicas_;
    model::ResNet network_;
    parallel::HostSharedMemory memory_;
    StateTensors tensors_;
    cuda::DeviceFloats device_memory_;  ///< the tensors again, where the replicas compute on a device
    std::unique_ptr<parallel::GradientExchange> exchange_;
    std::unique_ptr<ReplicaSlots> slots_;
    std::unique_ptr<TrainingStep> training_step_;
};

}  // namespace holdfast::train
