// SPDX-License-Identifier: Apache-2.0
// One step of the run on this rank: its replicas compute, the gradients are summed over all replicas, and parameters, momentum,
// running statistics and moving averages are updated as the sum arrives. On CPUs each rank updates its piece of what the host shares
// (HostTrainingStep); on GPUs each rank has all of it in its device's memory (DeviceTrainingStep).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/batch_loader.hpp"
#include "optim/sgd.hpp"
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
    TrainingStep(model::FlatLayout const& layout, parallel::GradientExchange& exchange, ReplicaSlots& slots,
                 int first_replica);
    virtual ~TrainingStep() = default;

    /// Collective. Parameters, momentum, statistics and averages are updated on return, on all ranks alike.
    StepResult run(data::StepBatch const& batch, data::ImageShape shape, optim::SgdRates const& rates,
                   bool ask_to_stop);

    /// Makes the state that lies in host memory the one the steps go on with. Every rank must, after it was written there.
    virtual void load_state() = 0;
    /// Makes the state after the last step visible in host memory, for who saves it. Any rank may.
    virtual void fetch_state() = 0;
    /// replica_digests() of what this rank's steps go on with: on GPUs each rank has a copy of its own.
    virtual std::string state_digests() const = 0;
    /// Tells `phases` from now on what this rank is at. It must outlive the step.
    void report_to(PhaseBoard& phases) { phases_ = &phases; }

  protected:
    model::FlatLayout const& layout() const { return layout_; }

  private:
    void compute(data::StepBatch const& batch, data::ImageShape shape);
    virtual void add(std::span<float> target, std::span<float const> source) = 0;
    virtual void add_one(float* place) = 0;
    virtual void consume(std::size_t offset, std::span<float const> sum, optim::SgdRates const& rates) = 0;
    /// FlatLayout::tail_size sums of the last step, in host memory.
    virtual std::span<float const> read_tail() = 0;

    model::FlatLayout const& layout_;
    parallel::GradientExchange& exchange_;
    ReplicaSlots& slots_;
    int first_replica_;
    PhaseBoard unwatched_;
    PhaseBoard* phases_ = &unwatched_;
};

class HostTrainingStep : public TrainingStep {
  public:
    /// `tail` is host-shared memory of FlatLayout::tail_size floats that receives the step's sums.
    HostTrainingStep(model::FlatLayout const& layout, StateTensors const& tensors, std::span<float> tail,
                     parallel::GradientExchange& exchange, ReplicaSlots& slots, int first_replica);

    void load_state() override {}
    void fetch_state() override {}
    std::string state_digests() const override;

  private:
    void add(std::span<float> target, std::span<float const> source) override;
    void add_one(float* place) override { *place += 1.0f; }
    void consume(std::size_t offset, std::span<float const> sum, optim::SgdRates const& rates) override;
    std::span<float const> read_tail() override { return tail_; }

    StateTensors tensors_;
    std::span<float> tail_;
};

}  // namespace holdfast::train
