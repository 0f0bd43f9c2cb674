// SPDX-License-Identifier: Apache-2.0
// The loop over epochs and steps: batches in, steps done, epochs evaluated and reported, checkpoints saved when due, and a
// clean stop when any rank is asked for one. All ranks take every branch alike, because each decision is a function of the
// step or comes out of the gradient exchange.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "data/batch_loader.hpp"
#include "optim/learning_rate.hpp"
#include "parallel/communicator.hpp"
#include "parallel/replica_range.hpp"
#include "report/progress.hpp"
#include "train/phase_board.hpp"
#include "train/run_directory.hpp"
#include "train/save_schedule.hpp"
#include "train/training_step.hpp"

namespace holdfast::train {

/// Of this launch; another value gives the same result.
struct LaunchOptions {
    SaveEvery save_every;
    std::optional<double> end_time_s;  ///< stop before this time, in seconds since 1970
    std::int64_t check_replicas_every =
        0;  ///< steps between comparisons of all ranks' state and data; 0: never
    std::int64_t digest_every_steps = 0;     ///< 0: no digests in the ledger but those of checkpoints
    std::optional<StepRange> profile_steps;  ///< recorded into RUN/trace; none: nothing is
    report::ProgressMode progress = report::ProgressMode::automatic;
    std::string
        log_indices;  ///< file that receives the sample numbers of every step and replica; empty: none
};

struct TrainerParts {
    parallel::Communicator const& communicator;
    data::ImageDataset const& train_set;
    data::ImageDataset const& test_set;
    ReplicaSlots& slots;
    TrainingStep& training_step;
    RunState& state;
    RunDirectory* run_directory;       ///< null on all ranks but 0
    PhaseBoard& phases;                ///< what this rank is at, for the watchdogs
    data::DeviceImages* train_images;  ///< of the two sets, where a device computes the images; null on CPUs
    data::DeviceImages* test_images;
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
    /// On rank 0, once stopped: what asked for it.
    std::string const& stop_reason() const { return stop_reason_; }

  private:
    bool is_root() const { return parts_.communicator.rank() == 0; }
    Outcome train_to_end();
    /// Once, after the last step that is to be recorded, or as far as the launch came. Nothing if none is.
    void collective_write_trace();
    StepResult do_step(data::BatchLoader& loader);
    /// Evaluates and closes the epoch that has just ended. False if a rank wanted to stop meanwhile: then it is still open.
    bool finish_epoch();
    Outcome collective_stop();
    report::ProgressState progress() const;
    std::optional<EvaluationSums> collective_evaluate_state();
    /// Whether this rank wants all to stop, and why.
    bool wants_stop();
    /// Compares the replicas if that is asked for now. Whether the state may be saved: unless it is compared anyway, it must be.
    bool collective_check_if_due();
    void save_if_due(bool may_start);
    void collective_save();
    void collective_check();
    void collective_log_indices(data::StepBatch const& batch);

    TrainerParts parts_;
    LaunchOptions options_;
    parallel::ReplicaRange replicas_;
    data::Normalization normalization_;
    optim::Schedule learning_rates_;
    struct EpochTimes {
        double seconds = 0;
        double data_wait_s = 0;
        std::int64_t samples = 0;
        double images_per_s() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
    };
    EpochTimes epoch_times_;     ///< of the open epoch, in this launch
    SaveSchedule schedule_;      ///< of rank 0
    double longest_step_s_ = 0;  ///< of this launch; what stopping in time has to reckon with
    double longest_save_s_ = 0;
    bool saving_fails_ = false;
    bool is_trace_due_;
    std::string stop_reason_;
    std::ofstream indices_;
};

}  // namespace holdfast::train
