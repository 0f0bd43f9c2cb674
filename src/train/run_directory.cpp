// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/durable_file.hpp"
#include "core/digest.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
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

Position position_of(RunState const& state) {
    return position_at(state.step, state.steps_per_epoch, state.open_epoch.count);
}

Position position_of(checkpoint::CheckpointFile const& file) {
    return position_at(file.integer(checkpoint::step_path), file.integer("/progress/steps_per_epoch"),
                       file.integer("/progress/open_epoch_count"));
}

std::string digest_of_file(fs::path const& path) {
    return checkpoint::file_digest(checkpoint::CheckpointStore::read(path)).hex();
}

}  // namespace

RunDirectory::RunDirectory(fs::path const& path, int keep, std::vector<std::string> hosts, std::int64_t ranks)
    : path_(created(path)),
      keep_(keep),
      ownership_(path_),
      launch_(ownership_.number()),
      store_(path_),
      metrics_(path_ / "metrics.jsonl", launch_),
      ledger_(path_ / "ledger.jsonl", {launch_, std::move(hosts), ranks}) {
    // A request to stop that an earlier launch has obeyed, or never saw.
    ::unlink((path_ / "drain").c_str());
}

std::optional<checkpoint::StoredCheckpoint> RunDirectory::read_newest_good() {
    auto newest = store_.read_newest_good(checkpoint::DamagedFiles::quarantine);
    if (newest) {
        checkpoint::CheckpointFile file(std::move(newest->bytes), newest->path.string());
        parent_digest_ = file.file_digest().hex();
        parent_position_ = position_of(file);
        newest->bytes = std::move(file).take_bytes();
    }
    return newest;
}

void RunDirectory::save(RunState& state) {
    LedgerRow row;
    row.kind = parent_digest_.empty() ? RowKind::start : RowKind::checkpoint;
    row.parent = parent_digest_;
    row.first = parent_position_;
    save(state, std::move(row));
}

void RunDirectory::save_import(RunState& state, checkpoint::CheckpointFile const& original) {
    LedgerRow row;
    row.kind = RowKind::import;
    row.parent = original.file_digest().hex();
    row.source = original.name();
    row.first = position_of(state);
    save(state, std::move(row));
}

void RunDirectory::save(RunState& state, LedgerRow row) {
    Clock::time_point const start = Clock::now();
    auto const visit = [&](checkpoint::StateArchive& archive) { state.visit(archive); };
    if (!image_) image_ = std::make_unique<checkpoint::CheckpointImage>(visit);
    std::span<std::byte const> const bytes = image_->save(visit);
    row.end = position_of(state);
    row.digest = checkpoint::file_digest(bytes).hex();
    row.parameters = image_->parameters_digest().hex();
    bool has_row = false;
    store_.commit(state.step, bytes, ownership_.temp_dir(), [&] {
        ledger_.append(row);
        has_row = true;
    });
    // A file of the same state was there and stays, so it is what the next one goes on from.
    parent_digest_ = has_row ? row.digest : digest_of_file(store_.path_of(state.step));
    parent_position_ = row.end;
    checkpoint::write_file_durably(path_ / "metrics.csv", report::metrics_csv(state.history),
                                   ownership_.temp_dir());
    checkpoint::write_file_durably(path_ / "config.json", to_json(state.settings) + "\n",
                                   ownership_.temp_dir());
    store_.prune(keep_);
    metrics_.append(state.step, "save", {{"save_s", seconds_since(start)}, {"size_bytes", bytes.size()}});
}

void RunDirectory::record_digest(RunState& state) {
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

bool RunDirectory::wants_drain() const { return ::access((path_ / "drain").c_str(), F_OK) == 0; }

void RunDirectory::write_outcome(ExitCode code, std::string const& reason, RunState const& state) {
    nlohmann::ordered_json outcome;
    outcome["launch"] = launch_;
    outcome["code"] = static_cast<int>(code);
    outcome["reason"] = reason;
    outcome["epoch"] = state.epoch;
    outcome["step"] = state.step;
    checkpoint::write_file_durably(path_ / "outcome.json", outcome.dump(2) + "\n", ownership_.temp_dir());
}

}  // namespace holdfast::train
