// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "checkpoint/durable_file.hpp"
#include "core/digest.hpp"
#include "core/error.hpp"
#include "report/metrics_csv.hpp"

namespace holdfast::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Creates RUN and RUN/checkpoints, and gives RUN back.
fs::path created(fs::path const& path) {
    std::error_code error;
    fs::create_directories(path / "checkpoints", error);
    require(!error, ExitCode::do_not_requeue,
            "cannot create the run directory {}: {} (checkpoints go there); choose another --run",
            path.string(), error.message());
    return path;
}

}  // namespace

RunDirectory::RunDirectory(fs::path const& path, int keep)
    : path_(created(path)),
      keep_(keep),
      ownership_(path_),
      launch_(ownership_.number()),
      store_(path_),
      metrics_(path_ / "metrics.jsonl", launch_) {
    // A request to stop that an earlier launch has obeyed, or never saw.
    ::unlink((path_ / "drain").c_str());
}

std::optional<checkpoint::StoredCheckpoint> RunDirectory::read_newest_good() {
    auto newest = store_.read_newest_good(checkpoint::DamagedFiles::quarantine);
    if (newest) {
        parent_digest_ = digest_of(newest->bytes).hex();
        parent_step_ = newest->step;
    }
    return newest;
}

void RunDirectory::save(RunState& state) {
    Clock::time_point const start = Clock::now();
    auto const visit = [&](checkpoint::StateArchive& archive) { state.visit(archive); };
    if (!image_) image_ = std::make_unique<checkpoint::CheckpointImage>(visit);
    std::span<std::byte const> const bytes = image_->save(visit);
    std::string const own_digest = digest_of(bytes).hex();
    nlohmann::ordered_json row;
    row["launch"] = launch_;
    row["parent"] = parent_digest_;
    row["first_step"] = parent_step_;
    row["end_step"] = state.step;
    row["epoch"] = state.epoch;
    row["digest"] = own_digest;
    store_.commit(state.step, bytes, ownership_.temp_dir(),
                  [&] { checkpoint::append_line_durably(path_ / "ledger.jsonl", row.dump()); });
    parent_digest_ = own_digest;
    parent_step_ = state.step;
    checkpoint::write_file_durably(path_ / "metrics.csv", report::metrics_csv(state.history),
                                   ownership_.temp_dir());
    checkpoint::write_file_durably(path_ / "config.json", to_json(state.settings) + "\n",
                                   ownership_.temp_dir());
    store_.prune(keep_);
    metrics_.append(state.step, "save", {{"save_s", seconds_since(start)}, {"size_bytes", bytes.size()}});
}

bool RunDirectory::wants_drain() const { return ::access((path_ / "drain").c_str(), F_OK) == 0; }

void RunDirectory::write_outcome(ExitCode code, std::string const& reason, RunState const& state) {
    checkpoint::write_file_durably(path_ / "outcome.json",
                                   outcome_json(launch_, code, reason, state.epoch, state.step),
                                   ownership_.temp_dir());
}

std::string outcome_json(std::int64_t launch, ExitCode code, std::string const& reason, std::int64_t epoch,
                         std::int64_t step) {
    nlohmann::ordered_json outcome;
    outcome["launch"] = launch;
    outcome["code"] = static_cast<int>(code);
    outcome["reason"] = reason;
    outcome["epoch"] = epoch;
    outcome["step"] = step;
    return outcome.dump(2) + "\n";
}

}  // namespace holdfast::train
