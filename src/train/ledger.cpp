// SPDX-License-Identifier: Apache-2.0
#include "train/ledger.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "checkpoint/durable_file.hpp"
#include "core/digest.hpp"
#include "core/error.hpp"
#include "core/json_text.hpp"

namespace holdfast::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t max_ledger_bytes = std::size_t{1} << 30;  // two million rows
constexpr std::int64_t max_number = std::int64_t{1} << 53;      // of a JSON integer that every reader takes
constexpr std::string_view check_key = R"(,"check":")";
constexpr std::size_t digest_digits = 32;
constexpr std::size_t check_bytes =
    check_key.size() + digest_digits + 2;  // a row's end, which the check does not cover

constexpr std::array<std::pair<RowKind, char const*>, 4> kind_names{{{RowKind::start, "start"},
                                                                     {RowKind::import, "import"},
                                                                     {RowKind::checkpoint, "checkpoint"},
                                                                     {RowKind::digest, "digest"}}};

char const* name_of(RowKind kind) {
    return std::ranges::find(kind_names, kind, &std::pair<RowKind, char const*>::first)->second;
}

std::string with_check(std::string_view covered) {
    std::string const check = digest_of(std::as_bytes(std::span(covered.data(), covered.size()))).hex();
    return fmt::format("{}{}{}\"}}", covered, check_key, check);
}

std::string check_in(std::string const& line) {
    return line.substr(line.size() - digest_digits - 2, digest_digits);
}

Json to_json(LedgerRow const& row) {
    Json json;
    json["kind"] = name_of(row.kind);
    json["launch"] = row.launch;
    json["hosts"] = row.hosts;
    json["ranks"] = row.ranks;
    if (row.kind != RowKind::digest) {
        json["parent"] = row.parent;
        if (row.kind == RowKind::import) json["source"] = row.source;
        json["first_step"] = row.first.step;
        json["first_epoch"] = row.first.epoch;
        json["first_sample"] = row.first.sample;
    }
    json["end_step"] = row.end.step;
    json["end_epoch"] = row.end.epoch;
    json["end_sample"] = row.end.sample;
    if (row.kind != RowKind::digest) json["digest"] = row.digest;
    json["parameters"] = row.parameters;
    json["previous"] = row.previous;
    return json;
}

std::int64_t number(Json const& json, char const* key) {
    auto const value = json.at(key).get<std::int64_t>();
    require(json.at(key).is_number_integer() && value >= 0 && value <= max_number, ExitCode::do_not_requeue,
            "{} is out of range", key);
    return value;
}

Position position(Json const& json, std::string const& prefix) {
    return {number(json, (prefix + "_step").c_str()), number(json, (prefix + "_epoch").c_str()),
            number(json, (prefix + "_sample").c_str())};
}

LedgerRow from_json(Json const& json) {
    LedgerRow row;
    auto const kind = std::ranges::find(kind_names, json.at("kind").get<std::string>(),
                                        [](auto const& entry) { return std::string(entry.second); });
    require(kind != kind_names.end(), ExitCode::do_not_requeue, "unknown kind");
    row.kind = kind->first;
    row.launch = number(json, "launch");
    row.hosts = json.at("hosts").get<std::vector<std::string>>();
    row.ranks = number(json, "ranks");
    if (row.kind != RowKind::digest) {
        row.parent = json.at("parent");
        if (row.kind == RowKind::import) row.source = json.at("source");
        row.first = position(json, "first");
        row.digest = parse_digest(json.at("digest").get<std::string>()).hex();
    }
    row.end = position(json, "end");
    row.parameters = parse_digest(json.at("parameters").get<std::string>()).hex();
    row.previous = json.at("previous");
    row.check = json.at("check");
    return row;
}

/// The row in a line, nothing if it is none.
std::optional<LedgerRow> parse_line(std::string_view line) {
    try {
        LedgerRow row = from_json(Json::parse(line));
        std::string_view const covered = line.substr(0, line.size() - std::min(line.size(), check_bytes));
        row.is_intact = line == with_check(covered);
        return row;
    } catch (Json::exception const&) {
        return std::nullopt;
    } catch (Error const&) {
        return std::nullopt;
    }
}

std::string describe(LedgerRow const& row) {
    return fmt::format("line {} ({} of step {}, launch {})", row.line, name_of(row.kind), row.end.step,
                       row.launch);
}

std::string describe(Position const& position) {
    return fmt::format("step {}, epoch {}, sample {}", position.step, position.epoch, position.sample);
}

void add_once(std::vector<std::int64_t>& values, std::int64_t value) {
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
}

/// Whether the three numbers of a position fit each other. Without products, which numbers from a file may overflow.
bool is_consistent(Position const& at, RunShape const& shape) {
    return at.epoch == at.step / shape.steps_per_epoch && at.sample % shape.samples_per_step == 0 &&
           at.sample / shape.samples_per_step == at.step % shape.steps_per_epoch;
}

/// Each row by itself, and in its place after the one before it.
void check_rows(LedgerText const& ledger, ChainReport& report) {
    std::map<std::string, LedgerRow const*, std::less<>> earlier;  // by check
    for (LedgerRow const& row : ledger.rows) {
        if (!row.is_intact)
            report.findings.push_back(
                fmt::format("{} was edited or damaged: its check does not fit its content", describe(row)));
        auto const [same, is_new] = earlier.emplace(row.check, &row);
        if (!is_new)
            report.findings.push_back(fmt::format("{} is {} a second time: a row was doubled", describe(row),
                                                  describe(*same->second)));
        // Another than the last one is right where an owner that had lost the run appended before it noticed.
        bool const has_previous = row.previous.empty()
                                      ? &row == &ledger.rows.front()
                                      : row.previous != row.check && earlier.contains(row.previous);
        if (!has_previous && !row.follows_a_hole)
            report.findings.push_back(fmt::format(
                "{} does not follow any row above it: a row before it was removed, moved or edited",
                describe(row)));
    }
}

/// The same step computed twice must have given the same parameters.
void compare_repeated_steps(LedgerText const& ledger, bool platform_changed, ChainReport& report) {
    std::map<std::int64_t, LedgerRow const*> by_step;
    for (LedgerRow const& row : ledger.rows) {
        if (row.kind == RowKind::import) {
            by_step.clear();  // another history begins
            continue;
        }
        auto const [first, is_new] = by_step.emplace(row.end.step, &row);
        if (is_new || first->second->parameters == row.parameters) continue;
        (platform_changed ? report.notes : report.findings)
            .push_back(fmt::format(
                "step {} was computed twice with different results: parameters {} by launch {} on "
                "{} (line {}), {} by launch {} on {} (line {}); {}",
                row.end.step, first->second->parameters, first->second->launch,
                fmt::join(first->second->hosts, ", "), first->second->line, row.parameters, row.launch,
                fmt::join(row.hosts, ", "), row.line,
                platform_changed ? "the run went on with --allow-platform-change"
                                 : "holdfast replay tells which host is wrong"));
    }
}

/// From the newest checkpoint back to a start, or to a file from elsewhere; oldest first.
std::vector<LedgerRow> walk_back(LedgerText const& ledger, std::string const& newest, ChainReport& report) {
    std::vector<LedgerRow> path;
    std::string wanted = newest;
    std::size_t end = ledger.rows.size();  // a parent is above its child, so the walk comes to an end
    while (true) {
        while (end > 0 &&
               (ledger.rows[end - 1].kind == RowKind::digest || ledger.rows[end - 1].digest != wanted))
            --end;
        if (end == 0) {
            if (path.empty())
                report.findings.push_back(fmt::format(
                    "the newest good checkpoint (digest {}) has no row: its row was removed or edited",
                    newest));
            else if (path.back().kind != RowKind::import)
                report.findings.push_back(
                    fmt::format("{}: no row above it tells of its parent {}: that row was removed or edited",
                                describe(path.back()), wanted));
            break;
        }
        path.push_back(ledger.rows[--end]);
        if (path.back().kind == RowKind::start) break;
        wanted = path.back().parent;
    }
    std::ranges::reverse(path);
    return path;
}

void check_positions(std::vector<LedgerRow> const& path, Position const& head, RunShape const& shape,
                     ChainReport& report) {
    if (shape.samples_per_epoch > 0 &&
        (shape.samples_per_epoch - 1) / shape.samples_per_step != shape.steps_per_epoch - 1)
        report.findings.push_back(
            fmt::format("{} samples were consumed in an epoch, which do not make {} steps of {}",
                        shape.samples_per_epoch, shape.steps_per_epoch, shape.samples_per_step));
    for (std::size_t i = 0; i < path.size(); ++i) {
        LedgerRow const& row = path[i];
        bool const is_begin = row.kind == RowKind::start || row.kind == RowKind::import;
        for (Position const& at : {row.first, row.end})
            if (!is_consistent(at, shape))
                report.findings.push_back(fmt::format(
                    "{}: {} do not fit each other (an epoch has {} steps of {} samples{})", describe(row),
                    describe(at), shape.steps_per_epoch, shape.samples_per_step,
                    shape.samples_per_epoch > 0 ? fmt::format(", {} in all", shape.samples_per_epoch) : ""));
        if (is_begin ? row.first != row.end : row.end.step < row.first.step)
            report.findings.push_back(
                fmt::format("{}: goes from {} to {}", describe(row), describe(row.first), describe(row.end)));
        if (i == 0 && !is_begin) continue;  // a finding of the walk
        Position const begin =
            i == 0 ? (row.kind == RowKind::import ? row.first : Position{}) : path[i - 1].end;
        if (row.first != begin)
            report.findings.push_back(fmt::format(
                "{} begins at {}, but {} at {}: samples between would be consumed twice, or never",
                describe(row), describe(row.first), i == 0 ? "a run begins" : describe(path[i - 1]) + " ends",
                describe(begin)));
    }
    if (!path.empty() && path.back().end != head)
        report.findings.push_back(fmt::format("{}: ends at {}, but the checkpoint is at {}",
                                              describe(path.back()), describe(path.back().end),
                                              describe(head)));
}

/// Of a path without findings.
std::vector<EpochShare> shares(std::vector<LedgerRow> const& path, RunShape const& shape) {
    std::vector<EpochShare> epochs;
    for (LedgerRow const& row : path)
        for (std::int64_t epoch = row.first.epoch; epoch <= row.end.epoch; ++epoch) {
            std::int64_t const end_sample = epoch == row.end.epoch ? row.end.sample : shape.samples_per_epoch;
            std::int64_t const first_sample = epoch == row.first.epoch ? row.first.sample : 0;
            if (first_sample == end_sample) continue;
            if (epochs.empty() || epochs.back().epoch != epoch)
                epochs.push_back({epoch, first_sample, end_sample, false, {}, {}});
            EpochShare& share = epochs.back();
            share.end_sample = end_sample;
            share.is_complete = share.first_sample == 0 && epoch < row.end.epoch;
            add_once(share.launches, row.launch);
            add_once(share.ranks, row.ranks);
        }
    return epochs;
}

}  // namespace

Position position_at(std::int64_t step, std::int64_t steps_per_epoch, std::int64_t open_epoch_count) {
    return {step, step / steps_per_epoch, step % steps_per_epoch == 0 ? 0 : open_epoch_count};
}

std::string to_line(LedgerRow const& row) {
    // Host names and paths may be anything; a ledger that cannot be written would be worse than a replaced character.
    std::string line = json_text(to_json(row), -1);
    line.pop_back();
    return with_check(line);
}

LedgerText parse_ledger(std::string_view text) {
    LedgerText ledger;
    bool after_hole = false;
    for (std::int64_t number = 1; !text.empty(); ++number) {
        std::string_view const line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        if (line.empty()) continue;
        if (auto row = parse_line(line)) {
            row->line = number;
            row->follows_a_hole = std::exchange(after_hole, false);
            ledger.rows.push_back(std::move(*row));
        } else {
            ledger.torn.push_back(number);
            after_hole = line.find('\0') != std::string_view::npos;
        }
    }
    return ledger;
}

LedgerText read_ledger(fs::path const& path) {
    std::error_code error;
    if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return {};
    std::vector<std::byte> const bytes = checkpoint::read_file(path, max_ledger_bytes);
    return parse_ledger({reinterpret_cast<char const*>(bytes.data()), bytes.size()});
}

ChainReport check_chain(LedgerText const& ledger, std::string const& newest, Position const& head,
                        RunShape const& shape) {
    ChainReport report;
    require(shape.samples_per_epoch >= 0 && shape.steps_per_epoch >= 1 && shape.samples_per_step >= 1,
            ExitCode::do_not_requeue, "an epoch of {} samples in {} steps of {} cannot be",
            shape.samples_per_epoch, shape.steps_per_epoch, shape.samples_per_step);
    check_rows(ledger, report);
    compare_repeated_steps(ledger, shape.platform_changed, report);
    report.path = walk_back(ledger, newest, report);
    check_positions(report.path, head, shape, report);
    report.num_digests = std::ranges::count(ledger.rows, RowKind::digest, &LedgerRow::kind);
    report.num_discarded = std::ssize(ledger.rows) - report.num_digests - std::ssize(report.path);
    if (report.is_proved()) report.epochs = shares(report.path, shape);
    return report;
}

Ledger::Ledger(fs::path path, Launch launch, fs::path const& temp_dir)
    : file_(std::move(path), max_ledger_bytes, temp_dir), launch_(std::move(launch)) {}

void Ledger::append(LedgerRow row) {
    bool const is_durable = row.kind != RowKind::digest;
    {
        std::scoped_lock const lock(mutex_);
        if (!is_read_) {
            LedgerText const ledger = parse_ledger(file_.text());
            last_check_ = ledger.rows.empty() ? "" : ledger.rows.back().check;
        }
        row.launch = launch_.number;
        row.hosts = launch_.hosts;
        row.ranks = launch_.ranks;
        row.previous = last_check_;
        std::string const line = to_line(row);
        is_read_ = false;  // a failed append may have left the row: then the file says what is the last one
        file_.append_line(line);
        last_check_ = check_in(line);
        is_read_ = true;
    }
    // Without the lock, so that a digest's row, written between two steps, waits for no slow disk.
    if (is_durable) file_.sync();
}

}  // namespace holdfast::train
