// SPDX-License-Identifier: Apache-2.0
// The run directory as its owner sees it: checkpoints, metrics, ledger, outcome. Exists on rank 0 only, after the ownership has
// been taken; everybody else reads checkpoints through checkpoint_store.hpp.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_image.hpp"
#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/run_ownership.hpp"
#include "core/exit_code.hpp"
#include "report/metrics_jsonl.hpp"
#include "train/run_state.hpp"

namespace holdfast::train {

/// RUN/outcome.json.
std::string outcome_json(std::int64_t launch, ExitCode code, std::string const& reason, std::int64_t epoch,
                         std::int64_t step);

class RunDirectory {
  public:
    /// Takes the run over, creating what is missing. Throws Error(owned_elsewhere) if another launch owns it, Error(retry) for
    /// disk trouble.
    RunDirectory(std::filesystem::path const& path, int keep);

    std::optional<checkpoint::StoredCheckpoint> read_newest_good();
    /// Makes the state durable: ledger row, checkpoint, metrics.csv, then old checkpoints are pruned.
    void save(RunState& state);
    /// Whether RUN/drain asks for a stop.
    bool wants_drain() const;
    /// RUN/outcome.json: how this launch ended. The last thing written.
    void write_outcome(ExitCode code, std::string const& reason, RunState const& state);
    /// Gives the ownership up, at a clean end.
    void release() { ownership_.release(); }

    report::MetricsLog& metrics() { return metrics_; }
    std::filesystem::path const& path() const { return path_; }
    std::int64_t launch() const { return launch_; }
    /// The owner's folder, RUN/writer-N.
    std::filesystem::path const& temp_dir() const { return ownership_.temp_dir(); }

  private:
    std::filesystem::path path_;
    int keep_;
    checkpoint::RunOwnership ownership_;
    std::int64_t launch_;
    checkpoint::CheckpointStore store_;
    report::MetricsLog metrics_;
    std::unique_ptr<checkpoint::CheckpointImage> image_;
    std::string parent_digest_;  ///< of the checkpoint this launch went on from, or wrote last
    std::int64_t parent_step_ = 0;
};

}  // namespace holdfast::train
