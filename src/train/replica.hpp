// SPDX-License-Identifier: Apache-2.0
// One replica's computation: forward and backward on its samples with its own BatchNorm batch statistics, into a flat gradient
// buffer. The tensors are views of memory that all replicas of a host (on a GPU: of a rank) share; only gradients and scratch are
// its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/batch_loader.hpp"
#include "model/resnet.hpp"
#include "train/compute_device.hpp"
#include "train/gradient_leaf.hpp"
#include "train/run_state.hpp"

namespace holdfast::train {

struct EvaluationSums {
    double loss = 0;  ///< sum over the samples
    std::int64_t correct = 0;
    std::int64_t count = 0;
};

class Replica {
  public:
    /// `tensors` lie on the device and must outlive the replica. `label_smoothing` in [0, 1) is for the training loss,
    /// `early_parts` are GradientLeaf's. To be built and used by one thread, after prepare_compute_thread.
    Replica(model::ResNet const& network, StateTensors const& tensors, ComputeDevice device = {},
            double label_smoothing = 0, std::span<parallel::FloatRange const> early_parts = {});
    ~Replica();
    Replica(Replica const&) = delete;
    Replica& operator=(Replica const&) = delete;

    /// Writes weight x (gradient, batch means, batch variances, loss) and the counts to `target`. An empty batch contributes
    /// +0.0 everywhere. With device memory the work is queued in the device's stream, but for early parts of the gradient. Throws
    /// Error(do_not_requeue) if the GPU's memory is too small.
    void train(data::ReplicaBatch const& batch, data::ImageShape shape, LeafTarget const& target);

    /// Without gradients and label smoothing, by the run's running statistics; parameters and these are the averages where such
    /// are kept.
    EvaluationSums evaluate(data::ReplicaBatch const& batch, data::ImageShape shape);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace holdfast::train
