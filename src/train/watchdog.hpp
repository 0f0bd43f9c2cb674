// SPDX-License-Identifier: Apache-2.0
// Ends a launch that does not get on. MPI never notices a rank that is stopped or a cable that is pulled: all the others wait for
// ever. A thread in every rank counts how long the ranks of its host stand still, in ticks of its own; at the deadline one rank
// per host says who hangs and who waits, in one line and in RUN/hang, and all leave, with 75, without another call of MPI.
//
// Time is counted in ticks because clocks go on while a job is suspended or its cores are busy with others, and ticks do not.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "parallel/communicator.hpp"
#include "parallel/gradient_exchange.hpp"
#include "parallel/host_shared_memory.hpp"
#include "train/hang_report.hpp"
#include "train/outcome.hpp"
#include "train/phase_board.hpp"

namespace holdfast::train {

using WatchdogClock = std::chrono::steady_clock;

class TickCounter {
  public:
    explicit TickCounter(WatchdogClock::time_point start) : last_(start) {}
    /// Whether the time since the last call is a tick. One that came over a second late is none: this process was suspended, or
    /// got no core, and so may have those it watches.
    bool count(WatchdogClock::time_point now);

  private:
    WatchdogClock::time_point last_;
};

/// How long a rank may stay in `phase`. 20 x the longest step so far, at least `watchdog_s`; at least 10 x that where nothing is
/// known from earlier steps of how long it takes: start, evaluation, save, shutdown, and the first step of a launch (0: none yet).
double deadline_s(Phase phase, double watchdog_s, double longest_step_s);

/// Follows the rows of a board, tick by tick.
class HangDetector {
  public:
    explicit HangDetector(double watchdog_s) : watchdog_s_(watchdog_s) {}

    /// One more tick has passed. Another number of rows than before, or another own one, is another board.
    void tick(std::span<PhaseBoard::Row const> rows, std::size_t own_row);
    /// The deadline that a rank, or its checkpoint writer, has passed.
    std::optional<double> passed_deadline_s() const;
    HostReport report() const;

  private:
    struct Watched {
        PhaseBoard::Row row;
        int ticks_still = 0;
        int ticks_silent = 0;
        int ticks_saving = 0;
    };
    double deadline_of(Phase phase) const;

    double watchdog_s_;
    std::vector<Watched> watched_;
    std::size_t own_row_ = 0;
    double longest_step_s_ = 0;
};

/// Where reports go, once the launch owns the run.
struct OwnedRun {
    std::filesystem::path run_dir;     ///< absolute
    std::filesystem::path writer_dir;  ///< the owner's folder: nothing is renamed out of it after a take-over
    std::int64_t launch = 0;
    std::int64_t steps_per_epoch = 1;
    ProgressSoFar progress;
};

class Watchdog {
  public:
    /// Watches this process alone, from here on. 0: never does anything.
    explicit Watchdog(double watchdog_s);
    ~Watchdog();
    Watchdog(Watchdog const&) = delete;
    Watchdog& operator=(Watchdog const&) = delete;

    PhaseBoard& phases() { return phases_; }

    /// Collective. Watches all ranks of the host, and learns from `world` when this rank waits in it.
    void collective_attach(parallel::Communicator& world);
    /// Collective. From here on hangs are reported into the run directory; `run` is rank 0's.
    void collective_own_run(parallel::Communicator const& world, OwnedRun const& run);
    /// Collective; before MPI ends, to which the memory may belong.
    void detach();

    /// While it lives, looks for trouble in the exchange too. The thread that trains may be elsewhere when a peer or the network is
    /// lost, and may never notice: if it has not ended the launch a second later, the watchdog does, with 75.
    class ExchangeWatch {
      public:
        ExchangeWatch(Watchdog& watchdog, parallel::GradientExchange const& exchange);
        ~ExchangeWatch();
        ExchangeWatch(ExchangeWatch const&) = delete;
        ExchangeWatch& operator=(ExchangeWatch const&) = delete;

      private:
        Watchdog& watchdog_;
    };

  private:
    void watch();
    void report();
    /// They say it, leave the outcome, and return the code to end with.
    ExitCode report_hang();
    ExitCode report_trouble();
    void say(std::string const& line);
    [[noreturn]] void speak_and_leave(std::unique_lock<std::mutex>& lock);
    [[noreturn]] void leave(std::unique_lock<std::mutex>& lock);

    bool const is_on_;
    PhaseBoard phases_;
    std::optional<parallel::HostSharedMemory> memory_;

    std::mutex mutex_;  ///< of all below
    std::condition_variable changed_;
    bool stopping_ = false;
    bool alarmed_ = false;
    bool is_printed_ = false;
    bool is_reported_ = false;
    ExitCode exit_code_ = ExitCode::retry;
    std::string line_;  ///< of the alarm, as far as it is known without the other hosts
    HangDetector detector_;
    parallel::GradientExchange const* exchange_ = nullptr;
    char const* trouble_ = nullptr;  ///< of the exchange
    int ticks_in_trouble_ = 0;
    std::vector<PhaseBoard::Row> rows_;
    std::vector<HostRanks> hosts_;
    std::size_t own_host_ = 0;
    bool is_attached_ = false;
    std::optional<OwnedRun> run_;
    std::thread watcher_;
    /// Does what can block: disks, terminals. Waits from the beginning, because a process that hangs may be unable to make it.
    std::thread reporter_;
};

}  // namespace holdfast::train
