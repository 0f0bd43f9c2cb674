// SPDX-License-Identifier: Apache-2.0
// The run directory as its owner sees it: checkpoints, metrics, ledger, outcome. Exists on rank 0 only, after the ownership has
// been taken; everybody else reads checkpoints through checkpoint_store.hpp.
#pragma once

#include <filesystem>
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
#include "train/run_state.hpp"

namespace holdfast::train {

class RunDirectory {
  public:
    /// Takes the run over, creating what is missing. Throws Error(owned_elsewhere) if another launch owns it, Error(retry) for
    /// disk trouble.
    /// `hosts` and `ranks` of this launch are for the ledger.
    RunDirectory(std::filesystem::path const& path, int keep, std::vector<std::string> hosts,
                 std::int64_t ranks);

    std::optional<checkpoint::StoredCheckpoint> read_newest_good();
    /// Makes the state durable: ledger row, checkpoint, metrics.csv, then old checkpoints are pruned.
    void save(RunState& state);
    /// The same for a state that was loaded from `original`.
    void save_import(RunState& state, checkpoint::CheckpointFile const& original);
    /// The ledger's row of the parameters as they are. Only warns if it cannot be written.
    void record_digest(RunState& state);
    /// Whether RUN/drain asks for a stop.
    bool wants_drain() const;
    /// RUN/outcome.json: how this launch ended. The last thing written.
    void write_outcome(ExitCode code, std::string const& reason, RunState const& state);
    /// Gives the ownership up, at a clean end.
    void release() { ownership_.release(); }

    report::MetricsLog& metrics() { return metrics_; }
    std::filesystem::path const& path() const { return path_; }
    std::int64_t launch() const { return launch_; }

  private:
    void save(RunState& state, LedgerRow row);

    std::filesystem::path path_;
    int keep_;
    checkpoint::RunOwnership ownership_;
    std::int64_t launch_;
    checkpoint::CheckpointStore store_;
    report::MetricsLog metrics_;
    std::unique_ptr<checkpoint::CheckpointImage> image_;
    Ledger ledger_;
    std::string parent_digest_;  ///< of the checkpoint this launch went on from, or wrote last
    Position parent_position_;
    bool warned_of_digest_ = false;
};

}  // namespace holdfast::train
