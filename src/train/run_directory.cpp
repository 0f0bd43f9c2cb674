// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.hpp"

#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/durable_file.hpp"
#include "core/digest.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/seconds_since.hpp"
#include "report/metrics_csv.hpp"

namespace holdfast::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

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

Position position_of(RunState const& state) {
    return position_at(state.step, state.steps_per_epoch, state.open_epoch.count);
}

Position position_of(checkpoint::CheckpointFile const& file) {
    return position_at(file.integer(checkpoint::step_path), file.integer("/progress/steps_per_epoch"),
                       file.integer("/progress/open_epoch_count"));
}

std::string digest_of_file(fs::path const& path) {
    return checkpoint::CheckpointStore::read(path).file_digest().hex();
}

}  // namespace

RunDirectory::RunDirectory(fs::path const& path, int keep, std::vector<std::string> hosts, std::int64_t ranks,
                           PhaseBoard& phases)
    : path_(created(path)),
      keep_(keep),
      phases_(phases),
      ownership_(path_),
      launch_(ownership_.number()),
      store_(path_),
      metrics_(path_ / "metrics.jsonl", launch_),
      ledger_(path_ / "ledger.jsonl", {launch_, std::move(hosts), ranks}, ownership_.temp_dir()) {
    // A request to stop that an earlier launch has obeyed, or never saw.
    fs::path const drain = path_ / "drain";
    std::error_code error;
    fs::remove(drain, error);
    require(!error, ExitCode::do_not_requeue,
            "{} cannot be removed: {} (while it is there, every launch saves and stops at once); remove it",
            drain.string(), error.message());
}

std::optional<checkpoint::StoredCheckpoint> RunDirectory::read_newest_good(
    std::optional<checkpoint::StoredCheckpoint> known) {
    auto newest = store_.read_newest_good(checkpoint::DamagedFiles::quarantine, std::move(known));
    if (newest) {
        parent_digest_ = newest->file.file_digest().hex();
        parent_position_ = position_of(newest->file);
    }
    return newest;
}

void RunDirectory::start_save(RunState& state) {
    LedgerRow row;
    row.kind = parent_digest_.empty() ? RowKind::start : RowKind::checkpoint;
    row.parent = parent_digest_;
    row.first = parent_position_;
    start_save(state, std::move(row));
}

void RunDirectory::start_save(RunState& state, LedgerRow row) {
    assert(!writing_.valid());
    Snapshot snapshot;
    snapshot.start = Clock::now();
    if (on_device_) {
        on_device_->start();
        snapshot.state = state;
    } else {
        copy_to_image(state);
    }
    row.end = position_of(state);
    snapshot.row = std::move(row);
    snapshot.metrics_csv = report::metrics_csv(state.history);
    snapshot.config_json = to_json(state.settings) + "\n";
    copied_position_ = snapshot.row.end;
    copied_epochs_ = state.history.size();
    snapshot.blocked_s = seconds_since(snapshot.start);
    writing_ = std::async(std::launch::async,
                          [this, taken = std::move(snapshot)]() mutable { return write(std::move(taken)); });
}

void RunDirectory::copy_to_image(RunState& state) {
    auto const visit = [&](checkpoint::StateArchive& archive) { state.visit(archive); };
    if (!image_) image_ = std::make_unique<checkpoint::CheckpointImage>(visit);
    image_->copy(visit);
}

bool RunDirectory::is_saving() const {
    return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::optional<SaveTimes> RunDirectory::finish_save() {
    if (!writing_.valid()) return std::nullopt;
    Written const written = writing_.get();
    parent_digest_ = written.digest;
    parent_position_ = copied_position_;
    saved_epochs_ = copied_epochs_;
    if (written.trouble_afterwards) std::rethrow_exception(written.trouble_afterwards);
    SaveTimes const& times = written.times;
    metrics_.append(
        parent_position_.step, "save",
        {{"blocked_s", times.blocked_s}, {"durable_s", times.durable_s}, {"busy_s", times.busy_s}});
    return times;
}

void RunDirectory::save(RunState& state) {
    start_save(state);
    finish_save();
}

void RunDirectory::save_import(RunState& state, checkpoint::CheckpointFile const& original) {
    LedgerRow row;
    row.kind = RowKind::import;
    row.parent = original.file_digest().hex();
    row.source = original.name();
    row.first = position_of(state);
    start_save(state, std::move(row));
    finish_save();
}

RunDirectory::Written RunDirectory::write(Snapshot snapshot) {
    Saving const saving(phases_, snapshot.row.end.step);
    if (snapshot.state) {
        snapshot.state->tensors = on_device_->wait();
        copy_to_image(*snapshot.state);
    }
    LedgerRow& row = snapshot.row;
    // Finite gradients can still overflow in the update itself.
    std::string const not_finite = image_->find_not_finite();
    require(not_finite.empty(), ExitCode::do_not_requeue,
            "step {}: {} holds NaN or infinity (a checkpoint of it would be useless); the checkpoint of step "
            "{} is "
            "good; try a smaller --lr",
            row.end.step, not_finite, parent_position_.step);
    std::span<std::byte const> const bytes = image_->seal();
    row.digest = checkpoint::file_digest(bytes).hex();
    row.parameters = image_->parameters_digest().hex();
    auto const write_metrics = [&] {
        if (snapshot.metrics_csv == metrics_csv_) return;
        checkpoint::write_file_durably(path_ / "metrics.csv", snapshot.metrics_csv, ownership_.temp_dir());
        metrics_csv_ = snapshot.metrics_csv;
    };
    bool has_row = false;
    store_.commit(row.end.step, bytes, ownership_.temp_dir(), [&] {
        write_metrics();  // before there is a finished run, which no later launch would touch any more
        ledger_.append(row);
        has_row = true;
    });
    // A file of the same state was there and stays: then that is what the next one goes on from.
    Written written{{}, has_row ? row.digest : digest_of_file(store_.path_of(row.end.step)), nullptr};
    try {
        if (!has_row) write_metrics();
        if (snapshot.config_json != config_json_) {
            checkpoint::write_file_durably(path_ / "config.json", snapshot.config_json,
                                           ownership_.temp_dir());
            config_json_ = snapshot.config_json;
        }
        store_.prune(keep_, ownership_.temp_dir());
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

void RunDirectory::record_digest(RunState& state) {
    if (!ownership_.still_owner()) return;  // the trainer will notice
    LedgerRow row;
    row.kind = RowKind::digest;
    row.end = position_of(state);
    row.parameters =
        checkpoint::parameters_digest([&](checkpoint::StateArchive& archive) { state.visit(archive); }).hex();
    try {
        ledger_.append(std::move(row));
    } catch (Error const& error) {
        if (!std::exchange(warned_of_digest_, true))
            log::warning("a digest of the parameters was not recorded: {}", error.what());
    }
}

bool RunDirectory::wants_drain() const {
    std::error_code ignored;
    return fs::exists(path_ / "drain", ignored);
}

void RunDirectory::write_outcome(LaunchOutcome outcome) {
    outcome.launch = launch_;
    outcome.saved_step = saved_step();
    checkpoint::write_file_durably(path_ / outcome_file, to_json(outcome), ownership_.temp_dir());
}

void write_outcome_of_unowned(fs::path const& run_dir, LaunchOutcome outcome) {
    std::error_code error;
    if (!fs::is_directory(run_dir / "checkpoints", error) || !checkpoint::is_free(run_dir)) return;
    checkpoint::RunOwnership ownership(run_dir);
    outcome.launch = ownership.number();
    checkpoint::write_file_durably(run_dir / outcome_file, to_json(outcome), ownership.temp_dir());
    ownership.release();
}

}  // namespace holdfast::train
