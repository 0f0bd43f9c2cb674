// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.hpp"

#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
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

/// Processor time of this thread so far. The writer thread lives for one save.
double thread_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// A scope in which the writer thread makes a step durable.
class Saving {
  public:
    Saving(PhaseBoard& phases, std::int64_t step) : phases_(phases) { phases_.begin_saving(step); }
    ~Saving() { phases_.end_saving(); }
    Saving(Saving const&) = delete;
    Saving& operator=(Saving const&) = delete;

  private:
    PhaseBoard& phases_;
};

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

RunDirectory::RunDirectory(fs::path const& path, int keep, PhaseBoard& phases)
    : path_(created(path)),
      keep_(keep),
      phases_(phases),
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

void RunDirectory::start_save(RunState& state) {
    assert(!writing_.valid());
    Snapshot snapshot;
    snapshot.start = Clock::now();
    auto const visit = [&](checkpoint::StateArchive& archive) { state.visit(archive); };
    if (!image_) image_ = std::make_unique<checkpoint::CheckpointImage>(visit);
    image_->copy(visit);
    snapshot.step = state.step;
    snapshot.epoch = state.epoch;
    snapshot.metrics_csv = report::metrics_csv(state.history);
    snapshot.config_json = to_json(state.settings) + "\n";
    copied_step_ = state.step;
    copied_epochs_ = state.history.size();
    snapshot.blocked_s = seconds_since(snapshot.start);
    writing_ = std::async(std::launch::async, [this, snapshot] { return write(snapshot); });
}

bool RunDirectory::is_saving() const {
    return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::optional<SaveTimes> RunDirectory::finish_save() {
    if (!writing_.valid()) return std::nullopt;
    Written const written = writing_.get();
    parent_digest_ = written.digest;
    parent_step_ = copied_step_;
    saved_epochs_ = copied_epochs_;
    if (written.trouble_afterwards) std::rethrow_exception(written.trouble_afterwards);
    SaveTimes const& times = written.times;
    metrics_.append(
        parent_step_, "save",
        {{"blocked_s", times.blocked_s}, {"durable_s", times.durable_s}, {"busy_s", times.busy_s}});
    return times;
}

void RunDirectory::save(RunState& state) {
    start_save(state);
    finish_save();
}

RunDirectory::Written RunDirectory::write(Snapshot const& snapshot) {
    Saving const saving(phases_, snapshot.step);
    // Finite gradients can still overflow in the update itself.
    std::string const not_finite = image_->find_not_finite();
    require(not_finite.empty(), ExitCode::do_not_requeue,
            "step {}: {} holds NaN or infinity (a checkpoint of it would be useless); the checkpoint of step "
            "{} is "
            "good; try a smaller --lr",
            snapshot.step, not_finite, parent_step_);
    std::span<std::byte const> const bytes = image_->seal();
    std::string const own_digest = digest_of(bytes).hex();
    nlohmann::ordered_json row;
    row["launch"] = launch_;
    row["parent"] = parent_digest_;
    row["first_step"] = parent_step_;
    row["end_step"] = snapshot.step;
    row["epoch"] = snapshot.epoch;
    row["digest"] = own_digest;
    store_.commit(snapshot.step, bytes, ownership_.temp_dir(),
                  [&] { checkpoint::append_line_durably(path_ / "ledger.jsonl", row.dump()); });
    Written written{{}, own_digest, nullptr};
    try {
        checkpoint::write_file_durably(path_ / "metrics.csv", snapshot.metrics_csv, ownership_.temp_dir());
        if (snapshot.config_json != config_json_) {
            checkpoint::write_file_durably(path_ / "config.json", snapshot.config_json,
                                           ownership_.temp_dir());
            config_json_ = snapshot.config_json;
        }
        store_.prune(keep_);
    } catch (Error const&) {
        written.trouble_afterwards = std::current_exception();
    }
    written.times = {snapshot.blocked_s, seconds_since(snapshot.start), thread_seconds()};
    return written;
}

void RunDirectory::require_ownership() const {
    require(ownership_.still_owner(), ExitCode::owned_elsewhere,
            "{} is gone (another launch has taken this run over); this launch stops",
            ownership_.temp_dir().string());
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
