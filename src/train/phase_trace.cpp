// SPDX-License-Identifier: Apache-2.0
#include "train/phase_trace.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuda/profiler.hpp"

namespace holdfast::train {
namespace {

using Json = nlohmann::ordered_json;
using Clock = PhaseTrace::Clock;

/// Since 1970: hosts have no other clock in common.
std::int64_t nanoseconds(Clock::time_point time) {
    static auto const offset = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()) -
                               std::chrono::nanoseconds(Clock::now().time_since_epoch());
    return (std::chrono::nanoseconds(time.time_since_epoch()) + offset).count();
}

double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-3; }

std::string track_name(int track) {
    if (track == PhaseTrace::steps) return "steps";
    if (track == PhaseTrace::writer) return "checkpoint writer";
    return fmt::format("replicas, slot {}", track - PhaseTrace::slots);
}

Json named(char const* what, int rank, int track, Json arguments) {
    return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", track}, {"args", std::move(arguments)}};
}

}  // namespace

std::optional<StepRange> step_range_from(std::string const& text) {
    StepRange range;
    char const* const end = text.data() + text.size();
    auto const first = std::from_chars(text.data(), end, range.first);
    if (first.ec != std::errc{} || first.ptr == end || *first.ptr != ':') return std::nullopt;
    auto const last = std::from_chars(first.ptr + 1, end, range.last);
    if (last.ec != std::errc{} || last.ptr != end) return std::nullopt;
    if (range.first < 0 || range.last < range.first) return std::nullopt;
    return range;
}

PhaseTrace::PhaseTrace(StepRange steps_to_record, bool on_gpu) : steps_(steps_to_record), on_gpu_(on_gpu) {
    nanoseconds({});
}

void PhaseTrace::enter(char const* name, std::int64_t step, bool begins_step) {
    if (begins_step && !is_recording() && step >= steps_.first && step <= steps_.last) {
        if (on_gpu_) cuda::start_profiler();
        is_recording_ = true;
    }
    if (!is_recording()) return;
    Clock::time_point const now = Clock::now();
    end_current(now);
    current_ = Span{name, steps, step, now, now};
}

void PhaseTrace::end_current(Clock::time_point now) {
    if (!current_) return;
    current_->end = now;
    add(*current_);
    current_.reset();
}

void PhaseTrace::add(Span const& span) {
    std::lock_guard const lock(mutex_);
    spans_.push_back(span);
}

void PhaseTrace::begin_writing(std::int64_t step) {
    Clock::time_point const now = Clock::now();
    std::lock_guard const lock(mutex_);
    writing_ = Span{"write", writer, step, now, now};
}

void PhaseTrace::end_writing() {
    std::lock_guard const lock(mutex_);
    if (is_recording() && writing_) {
        writing_->end = Clock::now();
        spans_.push_back(*writing_);
    }
    writing_.reset();
}

bool PhaseTrace::finish() {
    if (!is_recording()) return false;
    if (on_gpu_) cuda::stop_profiler();
    end_current(Clock::now());
    std::lock_guard const lock(mutex_);
    is_recording_ = false;
    if (writing_) {
        writing_->end = Clock::now();
        spans_.push_back(*writing_);
    }
    return true;
}

std::int64_t PhaseTrace::first_ns() const {
    std::lock_guard const lock(mutex_);
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    for (Span const& span : spans_) first = std::min(first, nanoseconds(span.begin));
    return first;
}

std::string PhaseTrace::events_json(int rank, std::string const& host, std::int64_t zero_ns) const {
    std::lock_guard const lock(mutex_);
    std::string text =
        named("process_name", rank, 0, {{"name", fmt::format("rank {} on {}", rank, host)}}).dump();
    auto const append = [&](Json const& event) { text += ",\n" + event.dump(); };
    append(named("process_sort_index", rank, 0, {{"sort_index", rank}}));
    std::map<int, std::string> tracks;
    for (Span const& span : spans_) tracks.emplace(span.track, track_name(span.track));
    for (auto const& [track, name] : tracks) {
        append(named("thread_name", rank, track, {{"name", name}}));
        append(named("thread_sort_index", rank, track, {{"sort_index", track}}));
    }
    for (Span const& span : spans_) {
        std::int64_t const begin_ns = nanoseconds(span.begin);
        Json arguments{{"step", span.step}};
        if (span.replica) arguments["replica"] = *span.replica;
        if (span.busy) arguments["busy_us"] = microseconds(std::chrono::nanoseconds(*span.busy).count());
        append({{"name", span.name},
                {"ph", "X"},
                {"ts", microseconds(begin_ns - zero_ns)},
                {"dur", microseconds(nanoseconds(span.end) - begin_ns)},
                {"pid", rank},
                {"tid", span.track},
                {"args", std::move(arguments)}});
    }
    return text;
}

std::string PhaseTrace::collective_json(parallel::Communicator const& communicator) const {
    std::int64_t zero_ns = std::numeric_limits<std::int64_t>::max();
    for (std::string const& first : communicator.all_gather(std::to_string(first_ns())))
        zero_ns = std::min<std::int64_t>(zero_ns, std::stoll(first));
    std::string const mine = events_json(communicator.rank(), communicator.host_name(), zero_ns);
    std::string all;
    for (std::string const& events : communicator.all_gather(mine))
        all += (all.empty() ? "" : ",\n") + events;
    return fmt::format("{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{}\n]}}\n", all);
}

ScopedSpan::ScopedSpan(PhaseTrace* trace, PhaseTrace::Span span) : trace_(trace), span_(span) {
    cuda::begin_range(span_.name, span_.step);
    if (trace_ != nullptr) span_.begin = Clock::now();
}

ScopedSpan::~ScopedSpan() {
    cuda::end_range();
    if (trace_ == nullptr || !trace_->is_recording()) return;
    span_.end = Clock::now();
    trace_->add(span_);
}

void PiecewiseSpan::begin_piece() {
    cuda::begin_range(span_.name, span_.step);
    if (trace_ != nullptr) piece_begin_ = Clock::now();
}

void PiecewiseSpan::end_piece() {
    cuda::end_range();
    if (trace_ == nullptr) return;
    span_.end = Clock::now();
    if (!span_.busy) span_.begin = piece_begin_;
    span_.busy = span_.busy.value_or(Clock::duration{}) + (span_.end - piece_begin_);
}

PiecewiseSpan::~PiecewiseSpan() {
    if (trace_ != nullptr && trace_->is_recording() && span_.busy) trace_->add(span_);
}

}  // namespace holdfast::train
