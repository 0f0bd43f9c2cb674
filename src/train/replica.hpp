// SPDX-License-Identifier: Apache-2.0
// One replica's computation: forward and backward on its samples with its own BatchNorm batch statistics, into a flat gradient
// buffer. The tensors are views of memory that all replicas of a host share; only gradients and scratch are its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/batch_loader.hpp"
#include "model/resnet.hpp"
#include "train/run_state.hpp"

namespace holdfast::train {

/// Where the tail of a gradient buffer (FlatLayout::tail_begin) carries what. All are summed over the replicas.
enum Tail : std::size_t {
    tail_loss = 0,  ///< mean loss of the replica, weighted as its gradient
    tail_correct,
    tail_count,
    tail_not_finite,  ///< replicas with a NaN or infinity in loss or gradient
    tail_stop,        ///< ranks that were asked to stop
};

enum class GradientWrite {
    overwrite,
    add,  ///< to what the buffer holds: this replica is the right sibling in the reduction tree
};

struct EvaluationSums {
    double loss = 0;  ///< sum over the samples
    std::int64_t correct = 0;
    std::int64_t count = 0;
};

class Replica {
  public:
    /// `tensors` must outlive the replica. To be built and used by one thread, after prepare_compute_thread.
    Replica(model::ResNet const& network, StateTensors const& tensors);
    ~Replica();
    Replica(Replica const&) = delete;
    Replica& operator=(Replica const&) = delete;

    /// Writes weight x (gradient, batch means, batch variances, loss) and the counts into `buffer`, of layout.num_floats.
    /// An empty batch contributes +0.0 everywhere.
    void train(data::ReplicaBatch const& batch, data::ImageShape shape, float weight, std::span<float> buffer,
               GradientWrite write);

    /// Without gradients, by the run's running statistics.
    EvaluationSums evaluate(data::ReplicaBatch const& batch, data::ImageShape shape);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace holdfast::train
