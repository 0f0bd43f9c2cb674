// SPDX-License-Identifier: Apache-2.0
// The replicas that a rank computes at the same time: each slot is a thread with a Replica of its own. With one slot
// everything runs in the calling thread. The bits are those of separate processes.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "train/replica.hpp"

namespace holdfast::train {

class ReplicaSlots {
  public:
    using Job = std::function<void(Replica&)>;

    /// `network` and the memory of `tensors` must outlive the slots. A GPU runs one replica after the other, so has one slot.
    /// `early_parts` are GradientLeaf's.
    ReplicaSlots(model::ResNet const& network, StateTensors const& tensors, int num_slots,
                 int threads_per_replica, ComputeDevice device = {}, double label_smoothing = 0,
                 std::span<parallel::FloatRange const> early_parts = {});
    ~ReplicaSlots();
    ReplicaSlots(ReplicaSlots const&) = delete;
    ReplicaSlots& operator=(ReplicaSlots const&) = delete;

    int size() const;
    /// Starts a job on a slot that is idle.
    void start(int slot, Job job);
    /// Returns when all slots are idle; rethrows the first exception of a job.
    void wait();

  private:
    class Slot;
    std::vector<std::unique_ptr<Slot>> slots_;
    std::unique_ptr<Replica> only_;  ///< with one slot
};

}  // namespace holdfast::train
