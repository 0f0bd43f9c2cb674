// SPDX-License-Identifier: Apache-2.0
#include "train/watchdog.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/durable_file.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/this_host.hpp"

namespace holdfast::train {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr double tick_s = std::chrono::duration<double>(watchdog_tick).count();
constexpr auto max_late = 1s;
constexpr double steps_per_deadline = 20;
/// A second: until then the thread that trains has ended the launch, if it waits for the exchange.
constexpr int max_ticks_in_trouble = 4;
constexpr double unknown_factor = 10;  ///< floor of what no step tells about, in units of --watchdog-seconds

// From the deadline to the last rank's end these add up to less than 5 s.
constexpr auto max_wait_for_hosts = 2500ms;
constexpr auto max_wait_for_report = 3250ms;
constexpr auto max_wait_for_speaker = 4000ms;

int rank_of_launcher() {
    for (char const* const name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
        if (char const* const rank = std::getenv(name)) return std::atoi(rank);
    return 0;
}

std::string text_of(fs::path const& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// In words, where the kernel's answer explains something.
std::string process_state(int pid) {
    std::string const stat = text_of(fmt::format("/proc/{}/stat", pid));
    std::size_t const begin = stat.find('(');
    std::size_t const end = stat.rfind(')');
    if (begin == std::string::npos || end == std::string::npos || end + 2 >= stat.size()) return "";
    // In another process namespace the number may be somebody else's.
    if (stat.substr(begin + 1, end - begin - 1) + "\n" != text_of("/proc/self/comm")) return "";
    switch (stat[end + 2]) {
        case 'T':
            return "is stopped";
        case 't':
            return "is stopped by a debugger";
        case 'D':
            return "waits for a disk or a network file system";
        case 'Z':
            return "has ended";
        default:
            return "";
    }
}

fs::path report_path(OwnedRun const& run, HostRanks const& host) {
    return run.run_dir / "hang" / fmt::format("{:06d}-{}.json", run.launch, host.name);
}

/// False if it cannot be written; then there is nobody left to tell.
bool try_to_write(fs::path const& path, std::string const& text, fs::path const& temp_dir) {
    try {
        checkpoint::write_file_durably(path, text, temp_dir);
        return true;
    } catch (Error const&) {
        return false;
    }
}

/// The same on every host, so that all ranks leave with its code.
LaunchOutcome outcome_of(OwnedRun const& run, std::string const& reason, std::int64_t step) {
    LaunchOutcome outcome;
    outcome.launch = run.launch;
    outcome.code = ExitCode::retry;
    outcome.reason = reason;
    outcome.epoch = step / run.steps_per_epoch;
    outcome.step = step;
    outcome.saved_step = run.progress.begun_at;
    // Rank 0 knows better, but it may be who hangs. A checkpoint gets its name once it is on the disk.
    try {
        auto const checkpoints = checkpoint::CheckpointStore(run.run_dir).list();
        if (!checkpoints.empty()) outcome.saved_step = checkpoints.front().step;
    } catch (Error const&) {}
    return counted(outcome, EndedBy::error, run.progress);
}

}  // namespace

bool TickCounter::count(WatchdogClock::time_point now) {
    return now - std::exchange(last_, now) <= watchdog_tick + max_late;
}

double deadline_s(Phase phase, double watchdog_s, double longest_step_s) {
    double const floor = is_in_step(phase) && longest_step_s > 0 ? watchdog_s : unknown_factor * watchdog_s;
    return std::max(floor, steps_per_deadline * longest_step_s);
}

void HangDetector::tick(std::span<PhaseBoard::Row const> rows, std::size_t own_row) {
    if (rows.size() != watched_.size() || own_row != own_row_) {
        watched_.clear();
        for (PhaseBoard::Row const& row : rows) watched_.push_back({row});
        own_row_ = own_row;
        return;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
        Watched& watched = watched_[i];
        PhaseBoard::Row const& row = rows[i];
        watched.ticks_still = row.changes == watched.row.changes ? watched.ticks_still + 1 : 0;
        watched.ticks_silent = row.signs_of_life == watched.row.signs_of_life ? watched.ticks_silent + 1 : 0;
        watched.ticks_saving = row.saving && row.saves == watched.row.saves ? watched.ticks_saving + 1 : 0;
        watched.row = row;
        longest_step_s_ = std::max(longest_step_s_, row.longest_step_s);
    }
}

double HangDetector::deadline_of(Phase phase) const {
    return deadline_s(phase, watchdog_s_, longest_step_s_);
}

std::optional<double> HangDetector::passed_deadline_s() const {
    for (Watched const& watched : watched_) {
        if (watched.row.pid == 0) continue;  // has not joined yet
        double const deadline = deadline_of(watched.row.phase);
        if (watched.ticks_still * tick_s >= deadline) return deadline;
        double const saving_deadline = deadline_of(Phase::save);
        if (watched.ticks_saving * tick_s >= saving_deadline) return saving_deadline;
    }
    return std::nullopt;
}

HostReport HangDetector::report() const {
    HostReport report;
    report.deadline_s = passed_deadline_s().value_or(deadline_of(Phase::compute));
    report.saving_deadline_s = deadline_of(Phase::save);
    for (Watched const& watched : watched_) {
        if (watched.row.pid == 0) continue;
        RankReport& rank = report.ranks.emplace_back();
        rank.rank = watched.row.rank;
        rank.pid = watched.row.pid;
        rank.phase = watched.row.phase;
        rank.step = watched.row.step;
        rank.seconds = watched.ticks_still * tick_s;
        rank.is_waiting = watched.row.is_waiting;
        rank.silent_s = watched.ticks_silent * tick_s;
        rank.saving = watched.row.saving;
        rank.saving_s = watched.ticks_saving * tick_s;
    }
    return report;
}

Watchdog::Watchdog(double watchdog_s)
    : is_on_(watchdog_s > 0),
      phases_(rank_of_launcher()),
      detector_(watchdog_s),
      hosts_{{host_name(), rank_of_launcher(), 1}} {
    if (!is_on_) return;
    phases_.set_waiting(true);  // MPI starts: whatever takes long is another rank's doing
    // Signals ask the trainer to stop; they must not end up in these threads, where they would interrupt nothing.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watcher_ = std::thread([this] { watch(); });
    reporter_ = std::thread([this] { report(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
    if (!is_on_) return;
    {
        std::lock_guard const lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    watcher_.join();
    reporter_.join();
}

void Watchdog::collective_attach(parallel::Communicator& world) {
    if (!is_on_) return;
    auto memory =
        parallel::HostSharedMemory::collective_allocate(world, PhaseBoard::bytes_for(world.local_size()));
    std::vector<std::string> const names = world.all_gather(world.host_name());
    std::vector<int> host_of_rank;
    for (std::string const& host : world.all_gather(std::to_string(world.host())))
        host_of_rank.push_back(std::stoi(host));
    {
        std::lock_guard const lock(mutex_);
        memory_ = std::move(memory);
        hosts_ = unique_hosts(names, host_of_rank);
        own_host_ = static_cast<std::size_t>(world.host());
        phases_.join(memory_->bytes(), world.local_rank(), world.rank());
        is_attached_ = true;
    }
    phases_.set_waiting(false);
    world.tell_when_waiting([this](bool is_waiting) { phases_.set_waiting(is_waiting); });
}

void Watchdog::collective_own_run(parallel::Communicator const& world, OwnedRun const& run) {
    if (!is_on_) return;
    std::istringstream lines(
        world.broadcast(fmt::format("{} {} {} {} {} {}\n{}", run.launch, run.steps_per_epoch,
                                    run.progress.limit, run.progress.begun_at, run.progress.launches,
                                    run.writer_dir.filename().string(), run.run_dir.string()),
                        0));
    OwnedRun owned;
    std::string writer;
    std::string run_dir;
    lines >> owned.launch >> owned.steps_per_epoch >> owned.progress.limit >> owned.progress.begun_at >>
        owned.progress.launches >> writer;
    lines.ignore(1);
    std::getline(lines, run_dir, '\0');
    owned.run_dir = run_dir;
    owned.writer_dir = owned.run_dir / writer;
    std::lock_guard const lock(mutex_);
    run_ = owned;
}

void Watchdog::detach() {
    if (!is_on_) return;
    {
        std::lock_guard const lock(mutex_);
        phases_.leave();
        is_attached_ = false;
    }
    phases_.set_waiting(true);  // MPI ends: whatever takes long is another rank's doing
    memory_.reset();
}

void Watchdog::watch() {
    TickCounter counter(WatchdogClock::now());
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, watchdog_tick, [this] { return stopping_; })) {
        phases_.show_life();
        if (phases_.report_is_claimed()) leave(lock);
        if (!counter.count(WatchdogClock::now())) continue;
        phases_.count_tick();
        phases_.read(rows_);
        detector_.tick(rows_, phases_.own_row());
        trouble_ = exchange_ != nullptr ? exchange_->trouble() : nullptr;
        ticks_in_trouble_ = trouble_ != nullptr ? ticks_in_trouble_ + 1 : 0;
        if (!detector_.passed_deadline_s() && ticks_in_trouble_ < max_ticks_in_trouble) continue;
        if (phases_.claim_report())
            speak_and_leave(lock);
        else
            leave(lock);
    }
}

void Watchdog::speak_and_leave(std::unique_lock<std::mutex>& lock) {
    alarmed_ = true;
    changed_.notify_all();
    // Allocates nothing: whoever hangs may hold malloc's lock.
    if (!changed_.wait_for(lock, max_wait_for_report, [this] { return is_reported_; }) && !is_printed_) {
        log::write_error_to_terminal(line_.empty() ? "no progress, and no way to say more: this process hangs"
                                                   : line_);
    }
    phases_.set_reported(static_cast<int>(exit_code_));
    _exit(static_cast<int>(exit_code_));
}

void Watchdog::leave(std::unique_lock<std::mutex>& lock) {
    auto const until = WatchdogClock::now() + max_wait_for_speaker;
    while (!phases_.reported() && WatchdogClock::now() < until)
        changed_.wait_for(lock, 20ms, [] { return false; });
    if (!phases_.reported())
        log::write_error_to_terminal("no progress, and the rank that was to report it hangs as well");
    _exit(phases_.reported().value_or(static_cast<int>(ExitCode::retry)));
}

void Watchdog::report() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return alarmed_ || stopping_; });
    if (!alarmed_) return;
    bool const is_hang = detector_.passed_deadline_s().has_value();
    lock.unlock();
    ExitCode const code = is_hang ? report_hang() : report_trouble();
    lock.lock();
    exit_code_ = code;
    is_reported_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return stopping_; });
}

void Watchdog::say(std::string const& line) {
    {
        std::lock_guard const lock(mutex_);
        is_printed_ = true;
    }
    log::write_error(line);
}

ExitCode Watchdog::report_trouble() {
    std::unique_lock lock(mutex_);
    line_ = fmt::format(
        "the gradient exchange failed: {} (the GPUs can no longer talk to each other); this launch ends with "
        "75: start again to go on from the last checkpoint, with NCCL_DEBUG=INFO if it happens again",
        trouble_);
    LaunchOutcome outcome{.code = ExitCode::retry, .reason = line_};
    std::optional<OwnedRun> const run = run_;
    std::int64_t const step = rows_[phases_.own_row()].step;
    lock.unlock();
    if (run) outcome = outcome_of(*run, outcome.reason, step);
    say(outcome.reason);
    if (run) try_to_write(run->run_dir / outcome_file, to_json(outcome), run->writer_dir);
    return outcome.code;
}

ExitCode Watchdog::report_hang() {
    std::unique_lock lock(mutex_);
    HostReport mine = detector_.report();
    std::vector<HostRanks> const hosts = hosts_;
    HostRanks const& host = hosts[own_host_];
    std::optional<OwnedRun> const run = run_;
    std::size_t const own_host = own_host_;
    bool const is_attached = is_attached_;
    for (RankReport& rank : mine.ranks) rank.process_state = process_state(rank.pid);
    std::vector<std::optional<HostReport>> reports(hosts.size());
    reports[own_host] = mine;
    auto const conclude = [&](bool knows_all_hosts) {
        Judgement judgement = judge(hosts, reports);
        judgement.knows_all_hosts = knows_all_hosts;
        if (!knows_all_hosts) judgement.silent_hosts.clear();
        return judgement;
    };
    Judgement const so_far = conclude(is_attached && hosts.size() == 1);
    line_ = explain(so_far, hosts, mine.deadline_s, "");
    lock.unlock();

    bool is_written = false;
    fs::path const folder = run ? run->run_dir / "hang" : fs::path();
    auto const write_own = [&](Judgement const& judgement, std::string const& conclusion) {
        return try_to_write(report_path(*run, host), to_json(mine, host, run->launch, judgement, conclusion),
                            folder);
    };
    if (run && is_attached) {
        std::error_code ignored;
        fs::create_directory(folder, ignored);
        is_written = write_own(so_far, "");
    }
    auto const until = WatchdogClock::now() + max_wait_for_hosts;
    for (bool all = false; is_written && !all && WatchdogClock::now() < until;) {
        all = true;
        for (std::size_t i = 0; i < hosts.size(); ++i) {
            if (!reports[i]) reports[i] = host_report_from_json(text_of(report_path(*run, hosts[i])));
            all = all && reports[i];
        }
        if (!all) std::this_thread::sleep_for(50ms);
    }
    Judgement const judgement = conclude(is_written || (is_attached && hosts.size() == 1));
    std::string line = explain(judgement, hosts, mine.deadline_s, is_written ? folder.string() : "");
    LaunchOutcome outcome{.code = ExitCode::retry, .reason = line};
    if (is_written) outcome = outcome_of(*run, line, mine.ranks.front().step);
    if (outcome.code != ExitCode::retry) line = outcome.reason;
    say(line);
    if (is_written) {
        write_own(judgement, line);
        std::size_t speaker = 0;  // one host writes the outcome
        while (!reports[speaker]) ++speaker;
        if (speaker == own_host) try_to_write(run->run_dir / outcome_file, to_json(outcome), run->writer_dir);
    }
    return outcome.code;
}

Watchdog::ExchangeWatch::ExchangeWatch(Watchdog& watchdog, parallel::GradientExchange const& exchange)
    : watchdog_(watchdog) {
    std::lock_guard const lock(watchdog_.mutex_);
    watchdog_.exchange_ = &exchange;
}

Watchdog::ExchangeWatch::~ExchangeWatch() {
    std::lock_guard const lock(watchdog_.mutex_);
    watchdog_.exchange_ = nullptr;
    watchdog_.ticks_in_trouble_ = 0;
}

}  // namespace holdfast::train
