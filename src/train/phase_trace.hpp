// SPDX-License-Identifier: Apache-2.0
// What a rank did when, in the steps of --profile-steps: spans of host time by thread, which a browser shows (chrome://tracing,
// ui.perfetto.dev). Filled by phase_board.hpp, which everybody tells what they are at anyway.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.hpp"

namespace holdfast::train {

/// The steps first to last, both included, counted from 0.
struct StepRange {
    std::int64_t first = 0;
    std::int64_t last = 0;
};

/// "2:5". None if that is not what `text` is, or no step is in it.
std::optional<StepRange> step_range_from(std::string const& text);

class PhaseTrace {
  public:
    using Clock = std::chrono::steady_clock;
    /// Lines of the picture; slot n of the replicas is `slots + n`.
    enum Track { steps = 0, writer = 1, slots = 2 };

    struct Span {
        char const* name = "";  ///< of a literal
        int track = steps;
        std::int64_t step = 0;
        Clock::time_point begin{};
        Clock::time_point end{};
        std::optional<int> replica{};
        std::optional<Clock::duration> busy{};  ///< less than the whole, where it was done in pieces
    };

    /// With a GPU, its profiler too runs in these steps.
    PhaseTrace(StepRange steps_to_record, bool on_gpu);

    StepRange steps_to_record() const { return steps_; }
    /// By the thread that trains: `name` of `step` begins, and what came before ends. Recording begins with the first step that
    /// is to be recorded; `begins_step`: this is how a step begins.
    void enter(char const* name, std::int64_t step, bool begins_step);
    /// Whether spans are wanted now. From any thread, as the next three.
    bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
    void add(Span const& span);
    /// The checkpoint writer's thread: it may have begun before the recording, and may be at work after it.
    void begin_writing(std::int64_t step);
    void end_writing();

    /// Ends the recording. False if it has never begun.
    bool finish();
    /// Collective. The file of all ranks, in the Trace Event Format. Times are by the clocks of the hosts, from the first span on.
    std::string collective_json(parallel::Communicator const& communicator) const;

  private:
    void end_current(Clock::time_point now);
    std::int64_t first_ns() const;
    std::string events_json(int rank, std::string const& host, std::int64_t zero_ns) const;

    StepRange steps_;
    bool on_gpu_;
    std::atomic<bool> is_recording_{false};
    std::optional<Span> current_;  ///< of the thread that trains
    mutable std::mutex mutex_;     ///< of the rest
    std::vector<Span> spans_;
    std::optional<Span> writing_;
};

/// A span as long as this lives, for profilers too, on the thread of its own.
class ScopedSpan {
  public:
    /// `trace` may be null. Begin and end of `span` are set here.
    ScopedSpan(PhaseTrace* trace, PhaseTrace::Span span);
    ~ScopedSpan();
    ScopedSpan(ScopedSpan const&) = delete;
    ScopedSpan& operator=(ScopedSpan const&) = delete;

  private:
    PhaseTrace* trace_;
    PhaseTrace::Span span_;
};

/// Something that a phase does in pieces: one span, from the first piece to the end of the last.
class PiecewiseSpan {
  public:
    /// `trace` may be null.
    PiecewiseSpan(PhaseTrace* trace, PhaseTrace::Span const& span) : trace_(trace), span_(span) {}
    ~PiecewiseSpan();
    PiecewiseSpan(PiecewiseSpan const&) = delete;
    PiecewiseSpan& operator=(PiecewiseSpan const&) = delete;

    void begin_piece();
    void end_piece();

  private:
    PhaseTrace* trace_;
    PhaseTrace::Span span_;
    PhaseTrace::Clock::time_point piece_begin_;
};

}  // namespace holdfast::train
