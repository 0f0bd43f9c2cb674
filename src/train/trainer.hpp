// SPDX-License-Identifier: Apache-2.0
// The loop over epochs and steps: batches in, steps done, epochs evaluated and reported, checkpoints saved when due, and a
// clean stop when any rank is asked for one. All ranks take every branch alike, because each decision is a function of the
// step or comes out of the gradient exchange.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "data/batch_loader.hpp"
#include "parallel/communicator.hpp"
#include "parallel/replica_range.hpp"
#include "report/progress.hpp"
#include "train/phase_board.hpp"
#include "train/run_directory.hpp"
#include "train/training_step.hpp"

namespace holdfast::train {

/// Of this launch; another value gives the same result.
struct LaunchOptions {
    std::int64_t save_every_epochs = 1;  ///< 0: only at the end
    std::int64_t save_every_steps = 0;   ///< 0: only at epoch ends
    report::ProgressMode progress = report::ProgressMode::automatic;
    std::string
        log_indices;  ///< file that receives the sample numbers of every step and replica; empty: none
};

/// Rank 0's device in log lines, in the tutorial's form.
inline constexpr char log_device[] = "CPU0";

struct TrainerParts {
    parallel::Communicator const& communicator;
    data::ImageDataset const& train_set;
    data::ImageDataset const& test_set;
    ReplicaSlots& slots;
    TrainingStep& training_step;
    RunState& state;
    RunDirectory* run_directory;  ///< null on all ranks but 0
    PhaseBoard& phases;           ///< what this rank is at, for the watchdogs
};

enum class Outcome {
    finished,  ///< the limits of the run are reached; it is evaluated and saved
    stopped,   ///< asked to stop; saved, and a later launch goes on
};

/// Steps after which the run is finished: its epochs, or fewer by --max-steps.
std::int64_t end_step(Settings const& settings, std::int64_t steps_per_epoch);

class Trainer {
  public:
    Trainer(TrainerParts const& parts, LaunchOptions options, parallel::ReplicaRange replicas);

    /// Collective. From state.step to the end of the run. Throws AgreedError(do_not_requeue) on all ranks when the loss or a
    /// gradient is not finite; then nothing of that step is saved.
    Outcome run();

  private:
    bool is_root() const { return parts_.communicator.rank() == 0; }
    StepResult do_step(data::StepBatch const& batch, double lr, double data_wait_s);
    void finish_epoch();
    report::ProgressState progress() const;
    EvaluationSums collective_evaluate_state();
    void collective_save();
    void collective_log_indices(data::StepBatch const& batch);

    TrainerParts parts_;
    LaunchOptions options_;
    parallel::ReplicaRange replicas_;
    data::Normalization normalization_;
    struct EpochTimes {
        double seconds = 0;
        double data_wait_s = 0;
        std::int64_t samples = 0;
        double images_per_s() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
    };
    EpochTimes epoch_times_;  ///< of the open epoch, in this launch
    std::int64_t saved_step_;
    std::ofstream indices_;
};

}  // namespace holdfast::train
