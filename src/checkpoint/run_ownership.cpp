// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/run_ownership.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "checkpoint/durable_file.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/process_stat.hpp"
#include "core/this_host.hpp"

namespace holdfast::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char owner_file[] = "owner";
constexpr char last_number_file[] = "last-writer";

std::optional<std::int64_t> to_integer(std::string_view text) {
    std::int64_t value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::string environment(char const* name) {
    char const* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

std::string pid_namespace() {
    std::error_code error;
    return fs::read_symlink("/proc/self/ns/pid", error).string();
}

/// When the process started, in clock ticks since boot; empty if it is gone or only waits to be collected.
std::string start_time_of(std::string const& pid) {
    auto const stat = process_stat(pid);
    bool const is_gone = stat.empty() || stat[stat_state] == "Z" || stat[stat_state] == "X";
    return is_gone ? "" : stat[stat_start_time];
}

using Owner = std::map<std::string, std::string>;

Owner this_process() {
    std::string const pid = std::to_string(::getpid());
    return {{"host", host_name()},
            {"boot_id", first_line_of("/proc/sys/kernel/random/boot_id")},
            {"pid_namespace", pid_namespace()},
            {"pid", pid},
            {"start_time", start_time_of(pid)},
            {"slurm_job_id", environment("SLURM_JOB_ID")},
            {"slurm_restart_count", environment("SLURM_RESTART_COUNT")},
            {"supervised_by", environment("HOLDFAST_SUPERVISED_BY")}};
}

/// Lines "key value"; empty where there is no file (yet).
Owner read_owner(fs::path const& writer) {
    Owner owner;
    std::ifstream file(writer / owner_file);
    for (std::string line; std::getline(file, line);) {
        auto const blank = line.find(' ');
        if (blank != std::string::npos) owner[line.substr(0, blank)] = line.substr(blank + 1);
    }
    return owner;
}

std::string value_of(Owner const& owner, char const* key) {
    auto const found = owner.find(key);
    return found == owner.end() ? "" : found->second;
}

/// Whether `owner` cannot be running any more, whatever its counter does.
bool is_certainly_dead(Owner const& owner, Owner const& self) {
    auto const same = [&](char const* key) {
        return !value_of(self, key).empty() && value_of(owner, key) == value_of(self, key);
    };
    // A process of another container looks dead from here although it lives, hence the namespace.
    if (same("boot_id") && same("pid_namespace") && !value_of(owner, "pid").empty()) {
        if (start_time_of(value_of(owner, "pid")) != value_of(owner, "start_time")) return true;
    }
    if (same("supervised_by")) return true;  // it starts one launch after the other
    auto const restarts = [](Owner const& of) {
        return to_integer(value_of(of, "slurm_restart_count")).value_or(0);
    };
    return same("slurm_job_id") && restarts(owner) < restarts(self);
}

std::string describe(Owner const& owner) {
    if (owner.empty()) return "a launch that has not yet written who it is";
    std::string text = fmt::format("process {} on {}", value_of(owner, "pid"), value_of(owner, "host"));
    if (!value_of(owner, "slurm_job_id").empty())
        text += fmt::format(", SLURM job {}", value_of(owner, "slurm_job_id"));
    return text;
}

fs::path writer_path(fs::path const& run_dir, std::int64_t number) {
    return run_dir / fmt::format("writer-{:06d}", number);
}

/// The numbers of all writer-N, ascending.
std::vector<std::int64_t> writers_in(fs::path const& run_dir) {
    constexpr std::string_view prefix = "writer-";
    std::vector<std::int64_t> numbers;
    std::error_code error;
    for (fs::directory_iterator it(run_dir, error), end; !error && it != end; it.increment(error)) {
        std::string const name = it->path().filename().string();
        if (!name.starts_with(prefix)) continue;
        if (auto const number = to_integer(std::string_view(name).substr(prefix.size())))
            numbers.push_back(*number);
    }
    require(!error, ExitCode::retry, "cannot list the run directory {}: {}", run_dir.string(),
            error.message());
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

std::int64_t last_number(fs::path const& run_dir) {
    return to_integer(first_line_of(run_dir / last_number_file)).value_or(0);
}

bool is_present(fs::path const& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 || errno != ENOENT;
}

void empty_and_remove(fs::path const& folder) {
    // A living old owner may put one more file into it between the two steps.
    for (int attempt = 0; attempt < 100; ++attempt) {
        std::error_code ignored;
        for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
            ::unlink(it->path().c_str());
        }
        if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return;
        if (errno != ENOTEMPTY && errno != EEXIST) break;
    }
    int const error = errno;
    fail(ExitCode::retry,
         "cannot remove {} of an earlier launch: {} (its owner could still write); remove it by hand if it "
         "stays",
         folder.string(), std::strerror(error));
}

/// Returns when the owner of `writer` is gone or dead, throws if it lives.
void wait_until_dead(fs::path const& writer, Owner const& self, OwnershipTiming const& timing) {
    Owner const first = read_owner(writer);
    if (is_certainly_dead(first, self)) {
        log::info("Taking over from {}, which ended without releasing the run", describe(first));
        return;
    }
    auto const start = Clock::now();
    bool told = false;
    while (Clock::now() - start < timing.expire) {
        std::this_thread::sleep_for(std::min(timing.refresh, timing.notice) / 4);
        if (!is_present(writer)) return;
        Owner const now = read_owner(writer);
        require(now.empty() || now == first, ExitCode::owned_elsewhere,
                "{} is in use by {} (two writers would destroy each other's checkpoints); wait for it, or "
                "choose another --run",
                writer.parent_path().string(), describe(now));
        if (!told && Clock::now() - start > timing.notice) {
            log::info("{} belongs to {}, which shows no sign of life; taking over unless it does within {} s",
                      writer.parent_path().string(), describe(first),
                      std::chrono::duration_cast<std::chrono::seconds>(timing.expire).count());
            told = true;
        }
    }
    log::warning("taking over from {}, which has shown no sign of life", describe(first));
}

}  // namespace

std::int64_t newest_launch(fs::path const& run_dir) {
    std::error_code error;
    if (!fs::exists(run_dir, error) && !error) return 0;
    auto const writers = writers_in(run_dir);
    // After the listing: an owner records its number before it can remove its folder.
    return std::max(writers.empty() ? 0 : writers.back(), last_number(run_dir));
}

bool is_free(fs::path const& run_dir) {
    auto const writers = writers_in(run_dir);
    return writers.empty() ||
           is_certainly_dead(read_owner(writer_path(run_dir, writers.back())), this_process());
}

RunOwnership::RunOwnership(fs::path const& run_dir, OwnershipTiming const& timing)
    : run_dir_(run_dir), timing_(timing) {
    Owner const self = this_process();
    while (number_ == 0) {
        auto const writers = writers_in(run_dir_);
        // After the listing: an owner records its number before it can remove its folder.
        std::int64_t const known = std::max(writers.empty() ? 0 : writers.back(), last_number(run_dir_));
        if (!writers.empty()) {
            wait_until_dead(writer_path(run_dir_, writers.back()), self, timing_);
            if (!is_present(writer_path(run_dir_, writers.back())))
                continue;  // released, or taken over by a third one
        }
        fs::path const mine = writer_path(run_dir_, known + 1);
        if (::mkdir(mine.c_str(), 0777) != 0) {
            int const error = errno;
            require(error != EEXIST, ExitCode::owned_elsewhere,
                    "{} was taken by another launch at this moment", run_dir_.string());
            fail(ExitCode::retry,
                 "cannot create {}: {} (errno {}; without it nothing can be saved); check space, quota and "
                 "permissions",
                 mine.string(), std::strerror(error), error);
        }
        if (last_number(run_dir_) >
            known) {  // a launch came and went since the listing; numbers are used once
            empty_and_remove(mine);
            continue;
        }
        number_ = known + 1;
        temp_dir_ = mine;
    }
    try {
        write_owner_file(0);
        remove_older_writers();
        write_file_durably(run_dir_ / last_number_file, fmt::format("{}\n", number_), temp_dir_);
    } catch (Error const&) {
        // Nothing was written under this ownership, so it need not keep the next launch waiting.
        empty_and_remove(temp_dir_);
        throw;
    }

    // Signals ask the trainer to stop; they must not end up in this thread, where they would interrupt
    // nothing.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    counter_ = std::thread([this] { count(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RunOwnership::~RunOwnership() { stop_counting(); }

void RunOwnership::remove_older_writers() const {
    for (std::int64_t const older : writers_in(run_dir_)) {
        if (older < number_) empty_and_remove(writer_path(run_dir_, older));
    }
}

void RunOwnership::write_owner_file(std::int64_t counter) const {
    std::string text;
    for (auto const& [key, value] : this_process()) text += fmt::format("{} {}\n", key, value);
    text += fmt::format("counter {}\n", counter);
    // Renamed into place so that nobody reads half of it. Not synced: it only matters while this process
    // lives.
    fs::path const temp = temp_dir_ / "owner.tmp";
    std::ofstream file(temp, std::ios::trunc);
    file << text;
    file.close();
    if (!file || ::rename(temp.c_str(), (temp_dir_ / owner_file).c_str()) != 0) {
        int const error = errno;
        require(is_present(temp_dir_), ExitCode::owned_elsewhere,
                "{} is gone (another launch has taken this run over)", temp_dir_.string());
        fail(ExitCode::retry, "cannot write {}: {} (errno {})", (temp_dir_ / owner_file).string(),
             std::strerror(error), error);
    }
}

void RunOwnership::count() {
    std::unique_lock lock(mutex_);
    for (std::int64_t counter = 1; !wake_.wait_for(lock, timing_.refresh, [this] { return stopping_; });
         ++counter) {
        lock.unlock();
        try {
            write_owner_file(counter);
        } catch (Error const& error) {
            // A full disk passes; while it lasts others see no sign of life, and may take over.
            if (error.code() == ExitCode::owned_elsewhere) {
                lost_ = true;
                return;
            }
        }
        lock.lock();
    }
}

void RunOwnership::stop_counting() {
    {
        std::lock_guard const lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (counter_.joinable()) counter_.join();
}

bool RunOwnership::still_owner() const { return !lost_ && is_present(temp_dir_); }

void RunOwnership::release() {
    stop_counting();
    if (still_owner()) empty_and_remove(temp_dir_);
    lost_ = true;
}

}  // namespace holdfast::checkpoint
