// SPDX-License-Identifier: Apache-2.0
// What every rank of this host is doing right now, in memory they share: its phase, its step, and whether it only waits for
// other ranks. A change is two stores, so it may happen many times a step. Nobody acts on it but the watchdogs. Profilers see the
// same as NVTX ranges, and --profile-steps records it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "train/phase_trace.hpp"

namespace holdfast::train {

enum class Phase : std::uint8_t {
    start,     ///< from main to the first step
    data,      ///< until the loader has the batch
    compute,   ///< forward, backward
    exchange,  ///< with the other ranks; a rank in it waits for them
    record,    ///< metrics and log of the step
    evaluate,
    check,  ///< comparing replicas
    save,
    shutdown,
};

/// The phases that a step goes through.
bool is_in_step(Phase phase);
/// A literal, so it ends with a null character.
std::string_view name_of(Phase phase);
std::optional<Phase> phase_named(std::string_view name);

/// The longest step of a launch. By the clock, and so nearly the same on all hosts; but a step in which the process was suspended
/// counts only for the ticks of the watchdog that passed in it.
class LongestStep {
  public:
    using Clock = std::chrono::steady_clock;

    void begin(Clock::time_point now, std::uint64_t ticks);
    /// Nothing if no step has begun.
    void end(Clock::time_point now, std::uint64_t ticks);
    Clock::duration longest() const { return longest_; }

  private:
    std::optional<Clock::time_point> start_;
    std::uint64_t start_ticks_ = 0;
    Clock::duration longest_{0};
};

/// What a watchdog counts time in.
inline constexpr std::chrono::milliseconds watchdog_tick{250};

class PhaseBoard {
  public:
    /// What a rank has written about itself.
    struct Row {
        int rank = 0;
        int pid = 0;
        Phase phase = Phase::start;
        std::int64_t step = 0;
        bool is_waiting = false;
        double longest_step_s = 0;             ///< so far; 0: none is done
        std::uint64_t changes = 0;             ///< moves whenever the rank gets on
        std::uint64_t signs_of_life = 0;       ///< moves as long as the process runs at all
        std::optional<std::int64_t> saving{};  ///< step that the checkpoint writer's thread is at, if any
        std::uint64_t saves = 0;               ///< moves whenever that thread gets on
    };

    /// A board of one row that nobody else sees, until `join`.
    explicit PhaseBoard(int rank = 0);
    PhaseBoard(PhaseBoard const&) = delete;
    PhaseBoard& operator=(PhaseBoard const&) = delete;

    static std::size_t bytes_for(int num_ranks);
    /// Goes on in the row `local_rank` of `shared`, zero bytes of bytes_for(ranks of the host). Until `leave`.
    void join(std::span<std::byte> shared, int local_rank, int rank);
    void leave();

    /// This rank begins `phase` of `step`, or is seen to get on in it.
    void enter(Phase phase, std::int64_t step);
    /// Whether this rank has done its part of the phase and waits for the others.
    void set_waiting(bool is_waiting);
    /// The checkpoint writer's thread begins to make `step` durable; and is done.
    void begin_saving(std::int64_t step);
    void end_saving();

    /// Records these steps. Before the checkpoint writer's thread begins.
    void record(StepRange steps, bool on_gpu) { trace_.emplace(steps, on_gpu); }
    /// Null unless steps are to be recorded.
    PhaseTrace* trace() { return trace_ ? &*trace_ : nullptr; }

    /// For the watchdogs.
    void show_life();
    /// A tick has passed that counts.
    void count_tick() { ticks_.fetch_add(1, std::memory_order_relaxed); }
    /// Into `rows`; allocates nothing once it has held as many.
    void read(std::vector<Row>& rows) const;
    std::size_t own_row() const { return own_row_; }
    /// The first rank of the host that asks gets true: it speaks for the host.
    bool claim_report();
    bool report_is_claimed() const;
    /// All ranks of the host leave with this code now.
    void set_reported(int exit_code);
    std::optional<int> reported() const;

  private:
    struct alignas(64) Words {
        std::uint64_t changes = 0;
        std::uint64_t what = 0;  ///< step, phase, waiting, in one word so that they fit together
        std::uint64_t signs_of_life = 0;
        std::uint64_t saves = 0;   ///< odd while the writer is at work
        std::uint64_t saving = 0;  ///< its step
        std::uint64_t longest_step_us = 0;
        std::uint32_t rank = 0;
        std::uint32_t pid = 0;
    };
    struct alignas(64) Header {
        std::uint32_t claimed = 0;
        std::uint32_t reported = 0;  ///< exit code
    };
    void write_identity(int rank);

    Header own_header_;
    Words own_words_;
    Header* header_ = &own_header_;
    std::span<Words> words_{&own_words_, 1};
    std::size_t own_row_ = 0;
    LongestStep longest_step_;
    bool is_in_range_ = false;  ///< of a profiler
    std::optional<PhaseTrace> trace_;
    std::atomic<std::uint64_t> ticks_{0};
};

}  // namespace holdfast::train
