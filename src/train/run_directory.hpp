// SPDX-License-Identifier: Apache-2.0
// The run directory as its owner sees it: checkpoints, metrics, ledger, outcome. Exists on rank 0 only, after the ownership has
// been taken; everybody else reads checkpoints through checkpoint_store.hpp. A save copies the state and leaves the rest to
// a writer thread, one save at a time. What lies in a device's memory is copied beside the training too.
#pragma once

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_image.hpp"
#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/run_ownership.hpp"
#include "core/exit_code.hpp"
#include "report/metrics_jsonl.hpp"
#include "train/ledger.hpp"
#include "train/outcome.hpp"
#include "train/phase_board.hpp"
#include "train/run_state.hpp"
#include "train/state_snapshot.hpp"

namespace holdfast::train {

/// RUN/outcome.json.
std::string outcome_json(std::int64_t launch, ExitCode code, std::string const& reason, std::int64_t epoch,
                         std::int64_t step);

/// What one save took.
struct SaveTimes {
    double blocked_s = 0;  ///< copying the state, or asking the device to: the step waited for this
    double durable_s = 0;  ///< from the start of the save until it was on the disk
    double busy_s = 0;     ///< processor time of the writer thread
};

class RunDirectory {
  public:
    /// Takes the run over, creating what is missing. Throws Error(owned_elsewhere) if another launch owns it, Error(retry) for
    /// disk trouble. `hosts` and `ranks` of this launch are for the ledger; `phases`,
    /// which must outlive this, learns what the writer thread is at.
    RunDirectory(std::filesystem::path const& path, int keep, std::vector<std::string> hosts,
                 std::int64_t ranks, PhaseBoard& phases);

    /// `known`: what was found before the run was taken over.
    std::optional<checkpoint::StoredCheckpoint> read_newest_good(
        std::optional<checkpoint::StoredCheckpoint> known = std::nullopt);
    /// From now on saves take the tensors from there, not from the state's own. Null: as before.
    void take_tensors_from(std::unique_ptr<StateSnapshot> snapshot) { on_device_ = std::move(snapshot); }
    /// Copies the state; the writer thread then makes it durable: ledger row, checkpoint, metrics.csv, and prunes old
    /// checkpoints. The save before it must be finished.
    void start_save(RunState& state);
    bool is_saving() const;
    /// Waits for the writer thread, if it has something to do. Throws what kept it from saving: Error(retry) for disk trouble,
    /// Error(do_not_requeue) for a state with NaN or infinity, Error(owned_elsewhere).
    std::optional<SaveTimes> finish_save();
    /// Both at once.
    void save(RunState& state);
    /// The same for a state that was loaded from `original`.
    void save_import(RunState& state, checkpoint::CheckpointFile const& original);
    /// Of the newest checkpoint that is on the disk.
    std::int64_t saved_step() const { return parent_position_.step; }
    /// Whether the newest checkpoint on the disk is this state.
    bool holds(RunState const& state) const {
        return parent_position_.step == state.step && saved_epochs_ == state.history.size();
    }
    /// Throws Error(owned_elsewhere) once another launch has taken the run over.
    void require_ownership() const;
    /// The ledger's row of the parameters as they are. Only warns if it cannot be written.
    void record_digest(RunState& state);
    /// Whether RUN/drain asks for a stop.
    bool wants_drain() const;
    /// RUN/outcome.json: how this launch ended, with its number and the newest checkpoint. The last thing written.
    void write_outcome(LaunchOutcome outcome);
    /// Gives the ownership up, at a clean end.
    void release() { ownership_.release(); }

    report::MetricsLog& metrics() { return metrics_; }
    std::filesystem::path const& path() const { return path_; }
    std::int64_t launch() const { return launch_; }
    /// The owner's folder, RUN/writer-N.
    std::filesystem::path const& temp_dir() const { return ownership_.temp_dir(); }

  private:
    /// `row` says how the state came about; the rest of the row is filled in.
    void start_save(RunState& state, LedgerRow row);
    /// A state that is copied but not yet on the disk.
    struct Snapshot {
        std::optional<RunState> state;  ///< whose tensors are still on their way from the device
        LedgerRow row;
        std::string metrics_csv, config_json;
        double blocked_s = 0;
        std::chrono::steady_clock::time_point start;
    };
    struct Written {
        SaveTimes times;
        std::string digest;  ///< of the file
        std::exception_ptr
            trouble_afterwards;  ///< the checkpoint is on the disk, but what goes with it is not
    };
    Written write(Snapshot snapshot);
    void copy_to_image(RunState& state);

    std::filesystem::path path_;
    int keep_;
    PhaseBoard& phases_;
    checkpoint::RunOwnership ownership_;
    std::int64_t launch_;
    checkpoint::CheckpointStore store_;
    report::MetricsLog metrics_;
    std::unique_ptr<checkpoint::CheckpointImage> image_;
    Ledger ledger_;
    std::string parent_digest_;  ///< of the checkpoint this launch went on from, or wrote last
    Position parent_position_;
    std::size_t saved_epochs_ = 0;  ///< rows of the history in the checkpoint that this launch wrote last
    Position copied_position_;      ///< of the state that the writer thread has
    std::size_t copied_epochs_ = 0;
    std::string metrics_csv_, config_json_;  ///< as last written
    bool warned_of_digest_ = false;
    std::unique_ptr<StateSnapshot> on_device_;
    std::future<Written> writing_;  ///< declared last: destroyed first, which waits for the writer thread
};

/// The outcome of a launch that ended before it owned the run, which is taken for the moment that writing needs. Does nothing if
/// there is no run, or it may have an owner.
void write_outcome_of_unowned(std::filesystem::path const& run_dir, LaunchOutcome outcome);

}  // namespace holdfast::train
