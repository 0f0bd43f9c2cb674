// SPDX-License-Identifier: Apache-2.0
// One step of the run on this rank: its replicas compute, the gradients are summed over all replicas, and parameters, momentum,
// running statistics and moving averages are updated as the sum arrives. On CPUs each rank updates its piece of what the host shares
// (HostTrainingStep); on GPUs each rank has all of it in its device's memory (DeviceTrainingStep).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
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
    double compute_s = 0;   ///< forward, backward and early merging on this rank; a device's by its own clock
    double exchange_s = 0;  ///< waiting for the other ranks, reduction, update; likewise
};

/// Yields the batch of the step after this one, valid as long as that step's; null if there is none.
using LookAhead = std::function<data::StepBatch const*()>;

class TrainingStep {
  public:
    TrainingStep(model::FlatLayout const& layout, parallel::GradientExchange& exchange, ReplicaSlots& slots,
                 int first_replica);
    virtual ~TrainingStep() = default;

    /// Collective. Parameters, momentum, statistics and averages are updated on return, on all ranks alike.
    /// So that a device is not idle while the host looks at the result, it is given forward and backward pass of the batch that
    /// `look_ahead` yields, behind this step; that batch must then be the next that is run. What `look_ahead` throws is thrown by
    /// that next run: this step is done, and may be the last.
    StepResult run(data::StepBatch const& batch, data::ImageShape shape, optim::SgdRates const& rates,
                   bool ask_to_stop, LookAhead const& look_ahead = nullptr);
    /// Whether the next step's passes are queued already. Not after a step with stop_requested.
    bool is_ahead() const { return is_ahead_; }

    /// Makes the state that lies in host memory the one the steps go on with. Every rank must, after it was written there.
    virtual void load_state() = 0;
    /// Makes the state after the last step visible in host memory, for who saves it. Any rank may.
    virtual void fetch_state() = 0;
    /// replica_digests() of what this rank's steps go on with: on GPUs each rank has a copy of its own.
    virtual std::string state_digests() const = 0;
    /// Tells `phases` from now on what this rank is at. It must outlive the step and its exchange.
    void report_to(PhaseBoard& phases) {
        phases_ = &phases;
        exchange_.tell_when_waiting([&phases](bool is_waiting) { phases.set_waiting(is_waiting); });
    }

  protected:
    model::FlatLayout const& layout() const { return layout_; }

    /// Points in a step. A device that was given the passes ahead has computed before the host begins the exchange: what lies
    /// between the two is neither, and the device was idle.
    enum Moment : std::size_t { begun, computed, exchange_begun, updated };
    static constexpr std::size_t num_moments = 4;

  private:
    void compute(data::StepBatch const& batch, data::ImageShape shape);
    void compute_ahead(LookAhead const& look_ahead, data::ImageShape shape);
    /// What was computed ahead is exchanged, because other ranks may have begun to, and nothing comes of it.
    void drop_what_is_ahead();
    /// Whether work is only queued here, so that more can be before it is done.
    virtual bool queues_work() const = 0;
    /// Notes the time of the queued work. A step's times are read after the next has begun, but before that is computed.
    virtual void mark(std::int64_t step, Moment moment) = 0;
    virtual double seconds_between(std::int64_t step, Moment first, Moment second) const = 0;
    virtual void add(std::span<float> target, std::span<float const> source) = 0;
    virtual void add_one(float* place) = 0;
    virtual void consume(std::size_t offset, std::span<float const> sum, optim::SgdRates const& rates) = 0;
    /// FlatLayout::tail_size sums of the last step, in host memory.
    virtual std::span<float const> read_tail() = 0;

    model::FlatLayout const& layout_;
    parallel::GradientExchange& exchange_;
    ReplicaSlots& slots_;
    int first_replica_;
    bool is_ahead_ = false;
    std::exception_ptr trouble_ahead_;  ///< in place of the next step's batch
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
    bool queues_work() const override { return false; }
    void mark(std::int64_t step, Moment moment) override;
    double seconds_between(std::int64_t step, Moment first, Moment second) const override;
    void add(std::span<float> target, std::span<float const> source) override;
    void add_one(float* place) override { *place += 1.0f; }
    void consume(std::size_t offset, std::span<float const> sum, optim::SgdRates const& rates) override;
    std::span<float const> read_tail() override { return tail_; }

    StateTensors tensors_;
    std::span<float> tail_;
    std::array<std::chrono::steady_clock::time_point, num_moments> moments_;
};

}  // namespace holdfast::train
