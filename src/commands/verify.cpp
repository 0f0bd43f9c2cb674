// SPDX-License-Identifier: Apache-2.0
// holdfast verify: which checkpoints of a run are intact, whether metrics.csv agrees with them, and the proof by the ledger that
// every sample was consumed exactly once. Changes nothing, also beside a launch that trains.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_image.hpp"
#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/durable_file.hpp"
#include "commands/commands.hpp"
#include "commands/run_path.hpp"
#include "core/error.hpp"
#include "core/json_text.hpp"
#include "report/metrics_csv.hpp"
#include "train/ledger.hpp"
#include "train/run_state.hpp"

namespace holdfast::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using checkpoint::CheckpointFile;

constexpr std::size_t max_metrics_bytes = std::size_t{1} << 28;

struct Verdict {
    fs::path path;
    std::int64_t step = -1;
    std::string file_digest;
    std::string state_digest;
    std::string problem;

    bool is_good() const { return problem.empty(); }
};

/// What the rest of the run must agree with.
struct Head {
    fs::path path;
    std::string file_digest;
    train::Position position;
    train::RunShape shape;
    bool repeats_samples = false;  ///< --tail pad
    std::vector<report::EpochRow> history;
    std::vector<std::int64_t>
        samples_of_epochs;  ///< consumed in each finished epoch, as the run counted them
};

struct Quarantined {
    std::string path;
    std::string reason;  ///< empty if it was lost
};

struct RunReport {
    std::vector<Verdict> checkpoints;  ///< newest first
    std::vector<Quarantined> quarantined;
    std::vector<std::string> temporary_files;
    std::optional<Head> head;  ///< of the newest good checkpoint
    std::string metrics;       ///< how metrics.csv compares
    train::LedgerText ledger;
    train::ChainReport chain;
    std::vector<std::string> findings;  ///< besides bad checkpoints
    std::vector<std::string> notes;

    bool is_good() const { return findings.empty() && std::ranges::all_of(checkpoints, &Verdict::is_good); }
};

Head head_of(CheckpointFile const& file) {
    train::Settings const settings = train::settings_from_json(file.text("/settings/json"), file.name());
    Json const fingerprint = Json::parse(file.text("/fingerprint/json"), nullptr, false);
    Head head;
    head.path = file.name();
    head.file_digest = file.file_digest().hex();
    head.history = train::history_of(file);
    for (report::EpochRow const& row : head.history) head.samples_of_epochs.push_back(row.train_count);
    std::int64_t const open_count = file.integer("/progress/open_epoch_count");
    head.shape.steps_per_epoch = std::max(file.integer("/progress/steps_per_epoch"), std::int64_t{1});
    head.position =
        train::position_at(file.integer(checkpoint::step_path), head.shape.steps_per_epoch, open_count);
    // Where the launch was stopped during the evaluation the last epoch has no row in the history yet.
    if (head.position.sample == 0 && std::ssize(head.history) < head.position.epoch)
        head.samples_of_epochs.push_back(open_count);
    if (!head.samples_of_epochs.empty()) head.shape.samples_per_epoch = head.samples_of_epochs.front();
    head.repeats_samples = settings.tail == "pad";
    head.shape.samples_per_step = settings.replicas * settings.batch_size;
    head.shape.platform_changed = fingerprint.contains("exact_until_step");
    return head;
}

/// `head` is filled if it is given and the file is good.
Verdict verify(fs::path const& path, std::optional<Head>* head = nullptr) {
    Verdict verdict{path, -1, {}, {}, {}};
    try {
        CheckpointFile const file = checkpoint::CheckpointStore::read(path);
        verdict.step = file.integer(checkpoint::step_path);
        verdict.file_digest = file.file_digest().hex();
        verdict.state_digest = file.state_digest().hex();
        if (head) *head = head_of(file);
    } catch (Error const& error) {
        verdict.problem = error.what();
    }
    return verdict;
}

std::vector<fs::path> files_in(fs::path const& folder) {
    std::vector<fs::path> files;
    std::error_code error;  // a folder that is not there, or goes away meanwhile, has none
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        files.push_back(it->path());
    std::ranges::sort(files);
    return files;
}

/// What the owner wrote beside a file that it set aside.
std::string reason_of(fs::path const& path) {
    std::ifstream file(path.string() + ".reason");
    std::string reason;
    std::getline(file, reason);
    return reason;
}

void verify_checkpoints(fs::path const& run, RunReport& report) {
    for (auto const& entry : checkpoint::CheckpointStore(run).list()) {
        Verdict verdict = verify(entry.path, report.head ? nullptr : &report.head);
        std::error_code error;
        if (!verdict.is_good() && !fs::exists(entry.path, error))
            continue;  // its run has deleted it meanwhile
        if (verdict.is_good() && verdict.step != entry.step) {
            verdict.problem = fmt::format("{}: holds step {}, another one than its name says",
                                          entry.path.string(), verdict.step);
            if (report.head && report.head->path == entry.path) report.head.reset();
        }
        report.checkpoints.push_back(std::move(verdict));
    }
    for (fs::path const& path : files_in(run / "checkpoints"))
        if (path.extension() == ".bad") report.quarantined.push_back({path.string(), reason_of(path)});
    require_checkpoint(!report.checkpoints.empty() || !report.quarantined.empty(), run.string());
}

void list_temporary_files(fs::path const& run, RunReport& report) {
    for (fs::path const& folder : files_in(run))
        if (folder.filename().string().starts_with("writer-"))
            for (fs::path const& path : files_in(folder))
                if (path.extension() == ".tmp" && path.filename() != "owner.tmp")
                    report.temporary_files.push_back(path.string());
}

std::string text_of(fs::path const& path) {
    std::error_code error;
    if (!fs::exists(path, error)) return "";
    std::vector<std::byte> const bytes = checkpoint::read_file(path, max_metrics_bytes);
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

std::string line_of(std::string const& text, std::size_t number) {
    std::size_t begin = 0;
    while (--number > 0) begin = text.find('\n', begin) + 1;
    return text.substr(begin, text.find('\n', begin) - begin);
}

/// metrics.csv is on the disk before its checkpoint, which may also be lost later: so it may have more rows, but not fewer.
void compare_metrics(fs::path const& run, RunReport& report) {
    fs::path const path = run / "metrics.csv";
    std::string const found = text_of(path);
    std::string const wanted = report::metrics_csv(report.head->history);
    std::size_t const epochs = report.head->history.size();
    auto const end_of_same = std::ranges::mismatch(found, wanted).in1 - found.begin();
    if (found == wanted) {
        report.metrics = fmt::format("agrees with the history: {} epochs", epochs);
    } else if (found.ends_with('\n') && found.starts_with(wanted)) {
        report.metrics = fmt::format(
            "agrees, but is newer than the checkpoint, which has {} epochs; the rest will be computed again",
            epochs);
    } else {
        auto const number =
            static_cast<std::size_t>(1 + std::count(found.begin(), found.begin() + end_of_same, '\n'));
        report.metrics = fmt::format("differs from the history in {}", report.head->path.filename().string());
        report.findings.push_back(fmt::format("{} {}, line {}: '{}' in place of '{}'", path.string(),
                                              report.metrics, number, line_of(found, number),
                                              line_of(wanted, number)));
    }
}

void check_ledger(fs::path const& run, RunReport& report) {
    fs::path const path = run / "ledger.jsonl";
    report.ledger = train::read_ledger(path);
    Head const& head = *report.head;
    bool const all_the_same = std::ranges::count(head.samples_of_epochs, head.shape.samples_per_epoch) ==
                              std::ssize(head.samples_of_epochs);
    if (!all_the_same || std::ssize(head.samples_of_epochs) != head.position.epoch) {
        report.findings.push_back(
            fmt::format("{}: in epoch {} after epochs of {} samples (then nothing is proved)",
                        head.path.string(), head.position.epoch, fmt::join(head.samples_of_epochs, ", ")));
        return;
    }
    report.chain = train::check_chain(report.ledger, head.file_digest, head.position, head.shape);
    for (std::string const& finding : report.chain.findings)
        report.findings.push_back(fmt::format("{}: {}", path.string(), finding));
    report.notes = report.chain.notes;
    for (Verdict const& verdict : report.checkpoints) {
        auto const is_its = [&](train::LedgerRow const& row) {
            return row.digest == verdict.file_digest && row.end.step == verdict.step;
        };
        if (!verdict.is_good() || verdict.file_digest == head.file_digest ||
            std::ranges::any_of(report.chain.path, is_its))
            continue;
        if (std::ranges::any_of(report.ledger.rows, is_its))
            report.notes.push_back(
                fmt::format("{} is no ancestor of the newest checkpoint", verdict.path.string()));
        else
            report.findings.push_back(fmt::format("{}: no row tells of {} (digest {})", path.string(),
                                                  verdict.path.string(), verdict.file_digest));
    }
}

RunReport verify_run(fs::path const& run) {
    RunReport report;
    verify_checkpoints(run, report);
    list_temporary_files(run, report);
    if (report.head) {
        compare_metrics(run, report);
        check_ledger(run,
                     report);  // after the checkpoints: beside a launch that trains, each then has its row
    } else {
        report.findings.push_back(fmt::format("{} has no good checkpoint", run.string()));
    }
    return report;
}

Json to_json(Verdict const& verdict) {
    return {{"file", verdict.path.string()},
            {"good", verdict.is_good()},
            {"step", verdict.step},
            {"file_digest", verdict.file_digest},
            {"state_digest", verdict.state_digest},
            {"problem", verdict.problem}};
}

Json to_json(RunReport const& report) {
    Json json;
    json["good"] = report.is_good();
    json["checkpoints"] = Json::array();
    for (Verdict const& verdict : report.checkpoints) json["checkpoints"].push_back(to_json(verdict));
    json["quarantined"] = Json::array();
    for (Quarantined const& file : report.quarantined)
        json["quarantined"].push_back({{"file", file.path}, {"reason", file.reason}});
    json["temporary_files"] = report.temporary_files;
    json["metrics_csv"] = report.metrics;
    Json& ledger = json["ledger"];
    ledger["rows"] = report.ledger.rows.size();
    ledger["torn"] = report.ledger.torn;
    ledger["path"] = report.chain.path.size();
    ledger["discarded"] = report.chain.num_discarded;
    ledger["digests"] = report.chain.num_digests;
    ledger["imported_from"] = report.chain.path.empty() ? "" : report.chain.path.front().source;
    json["epochs"] = Json::array();
    for (train::EpochShare const& share : report.chain.epochs)
        json["epochs"].push_back({{"epoch", share.epoch},
                                  {"first_sample", share.first_sample},
                                  {"end_sample", share.end_sample},
                                  {"complete", share.is_complete},
                                  {"launches", share.launches},
                                  {"ranks", share.ranks}});
    json["notes"] = report.notes;
    json["findings"] = report.findings;
    return json;
}

void print(Verdict const& verdict) {
    fmt::print("{:<4} {}  {}\n", verdict.is_good() ? "good" : "BAD", verdict.path.string(),
               verdict.is_good() ? fmt::format("step {}, state {}", verdict.step, verdict.state_digest)
                                 : verdict.problem);
}

std::string samples_text(train::EpochShare const& share, train::RunShape const& shape) {
    if (share.is_complete) return fmt::format("{}", share.end_sample);
    return fmt::format("{} to {} of {}", share.first_sample, share.end_sample,
                       shape.samples_per_epoch > 0 ? fmt::format("{}", shape.samples_per_epoch) : "?");
}

void print(RunReport const& report) {
    for (Verdict const& verdict : report.checkpoints) print(verdict);
    for (Quarantined const& file : report.quarantined)
        fmt::print("set aside  {}  {}\n", file.path, file.reason);
    for (std::string const& path : report.temporary_files)
        fmt::print(
            "temporary  {} (being written, or left by a launch that was killed; the next one removes it)\n",
            path);
    if (!report.metrics.empty()) fmt::print("metrics.csv  {}\n", report.metrics);
    if (report.head)
        fmt::print("ledger.jsonl  {} rows: {} lead to step {}, {} of discarded work, {} digests; {} torn\n",
                   report.ledger.rows.size(), report.chain.path.size(), report.head->position.step,
                   report.chain.num_discarded, report.chain.num_digests, report.ledger.torn.size());
    if (!report.chain.epochs.empty())
        fmt::print("{:<8} {:<20} {:<20} {}\n", "epoch", "samples", "launches", "ranks");
    for (train::EpochShare const& share : report.chain.epochs)
        fmt::print("{:<8} {:<20} {:<20} {}\n", share.epoch, samples_text(share, report.head->shape),
                   fmt::format("{}", fmt::join(share.launches, ", ")),
                   fmt::format("{}", fmt::join(share.ranks, ", ")));
    for (std::string const& note : report.notes) fmt::print("note   {}\n", note);
    for (std::string const& finding : report.findings) fmt::print("FOUND  {}\n", finding);
    if (!report.is_good()) return;
    train::LedgerRow const& begin = report.chain.path.front();
    std::string const source =
        begin.kind == train::RowKind::import
            ? fmt::format(
                  ", where the run began with {} (digest {}); what was before is in that run's ledger",
                  begin.source, begin.parent)
            : "";
    fmt::print(
        "Proved: from step {} to {} every sample was consumed exactly once an epoch{}, by one unbroken chain "
        "of checkpoints{}.\n",
        begin.end.step, report.head->position.step,
        report.head->repeats_samples ? " (but those that --tail pad repeats)" : "", source);
}

}  // namespace

Action add_verify(CLI::App& app) {
    struct Options {
        std::string path;
        bool json = false;
    };
    auto const options = std::make_shared<Options>();
    CLI::App* const command = app.add_subcommand(
        "verify", "Check checkpoints, metrics.csv and ledger of a run (exit 93 if something is wrong)");
    command->add_option("path", options->path, "Checkpoint file or run directory")
        ->type_name("FILE|DIR")
        ->required();
    command->add_flag("--json", options->json, "As JSON");
    return [options](Arguments&) {
        auto const show = [&](auto const& result) {
            if (options->json)
                std::cout << json_text(to_json(result)) << '\n';
            else
                print(result);
            return result.is_good() ? ExitCode::finished : ExitCode::do_not_requeue;
        };
        return is_run_directory(options->path) ? show(verify_run(options->path))
                                               : show(verify(options->path));
    };
}

}  // namespace holdfast::commands
