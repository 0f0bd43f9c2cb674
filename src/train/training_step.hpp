// SPDX-License-Identifier: Apache-2.0
// One step of the run on this rank: its replicas compute, the gradients are summed over all replicas, and each rank updates
// its piece of the shared parameters as the sum arrives.
#pragma once

#include <cstdint>
#include <span>

#include "data/batch_loader.hpp"
#include "parallel/gradient_exchange.hpp"
#include "train/phase_board.hpp"
#include "train/replica_slots.hpp"
#include "train/run_state.hpp"

namespace holdfast::train {

struct StepResult {
    float loss = 0;  ///< sample-weighted mean over all replicas
    std::int64_t samples = 0;
    std::int64_t correct = 0;
    bool is_finite = true;
    bool stop_requested = false;  ///< on any rank; the same answer on all of them
    double compute_s = 0;         ///< forward, backward and early merging on this rank
    double exchange_s = 0;        ///< waiting for the other ranks, reduction, update
};

class TrainingStep {
  public:
    /// `tail` is host-shared memory of FlatLayout::tail_size floats that receives the step's sums.
    TrainingStep(model::FlatLayout const& layout, StateTensors const& tensors, std::span<float> tail,
                 parallel::GradientExchange& exchange, ReplicaSlots& slots, int first_replica);

    /// Collective. Parameters, momentum and statistics are updated on return, on all ranks alike.
    StepResult run(data::StepBatch const& batch, data::ImageShape shape, float momentum, float lr,
                   bool ask_to_stop);

    /// Tells `phases` from now on what this rank is at. It must outlive the step.
    void report_to(PhaseBoard& phases) { phases_ = &phases; }

  private:
    void compute(data::StepBatch const& batch, data::ImageShape shape);
    void consume(std::size_t offset, std::span<float const> sum, float momentum, float lr);

    model::FlatLayout const& layout_;
    StateTensors tensors_;
    std::span<float> tail_;
    parallel::GradientExchange& exchange_;
    ReplicaSlots& slots_;
    int first_replica_;
    PhaseBoard unwatched_;
    PhaseBoard* phases_ = &unwatched_;
};

}  // namespace holdfast::train
