// SPDX-License-Identifier: Apache-2.0
#include "train/phase_board.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <unistd.h>
#include <utility>

#include "cuda/profiler.hpp"

namespace holdfast::train {
namespace {

constexpr std::array<std::string_view, 9> names{"start",    "data",  "compute", "exchange", "record",
                                                "evaluate", "check", "save",    "shutdown"};

template <typename T>
T load(T const& word) {
    return std::atomic_ref(const_cast<T&>(word)).load(std::memory_order_acquire);
}

template <typename T>
void store(T& word, T value) {
    std::atomic_ref(word).store(value, std::memory_order_release);
}

/// Only its owner changes a word, so this needs no read-modify-write.
void increment(std::uint64_t& word) { store(word, load(word) + 1); }

std::uint64_t pack(Phase phase, std::int64_t step, bool is_waiting) {
    return static_cast<std::uint64_t>(step) << 16 | static_cast<std::uint64_t>(phase) << 8 |
           static_cast<std::uint64_t>(is_waiting);
}

}  // namespace

bool is_in_step(Phase phase) {
    return phase == Phase::data || phase == Phase::compute || phase == Phase::exchange ||
           phase == Phase::record;
}

std::string_view name_of(Phase phase) { return names.at(static_cast<std::size_t>(phase)); }

std::optional<Phase> phase_named(std::string_view name) {
    for (std::size_t i = 0; i < names.size(); ++i)
        if (names[i] == name) return static_cast<Phase>(i);
    return std::nullopt;
}

void LongestStep::begin(Clock::time_point now, std::uint64_t ticks) {
    start_ = now;
    start_ticks_ = ticks;
}

void LongestStep::end(Clock::time_point now, std::uint64_t ticks) {
    if (!start_) return;
    // It began up to a tick before the first and ended up to one after the last.
    Clock::duration const ticked = static_cast<std::int64_t>(ticks - start_ticks_ + 2) * watchdog_tick;
    longest_ = std::max(longest_, std::min(now - *start_, ticked));
    start_.reset();
}

PhaseBoard::PhaseBoard(int rank) { write_identity(rank); }

std::size_t PhaseBoard::bytes_for(int num_ranks) {
    return sizeof(Header) + static_cast<std::size_t>(num_ranks) * sizeof(Words);
}

void PhaseBoard::write_identity(int rank) {
    Words& mine = words_[own_row_];
    store(mine.rank, static_cast<std::uint32_t>(rank));
    store(mine.pid, static_cast<std::uint32_t>(::getpid()));
}

void PhaseBoard::join(std::span<std::byte> shared, int local_rank, int rank) {
    assert(shared.size() >= sizeof(Header) + sizeof(Words));
    std::uint64_t const what = load(words_[own_row_].what);
    header_ = reinterpret_cast<Header*>(shared.data());
    words_ = {reinterpret_cast<Words*>(shared.data() + sizeof(Header)),
              (shared.size() - sizeof(Header)) / sizeof(Words)};
    own_row_ = static_cast<std::size_t>(local_rank);
    store(words_[own_row_].what, what);
    increment(words_[own_row_].changes);
    write_identity(rank);
}

void PhaseBoard::leave() {
    Words const& mine = words_[own_row_];
    std::uint64_t const what = load(mine.what);
    int const rank = static_cast<int>(load(mine.rank));
    header_ = &own_header_;
    words_ = {&own_words_, 1};
    own_row_ = 0;
    store(own_words_.what, what);
    increment(own_words_.changes);
    write_identity(rank);
}

void PhaseBoard::enter(Phase phase, std::int64_t step) {
    Words& mine = words_[own_row_];
    if (phase == Phase::data || !is_in_step(phase)) {
        auto const now = LongestStep::Clock::now();
        std::uint64_t const ticks = ticks_.load(std::memory_order_relaxed);
        longest_step_.end(now, ticks);
        if (phase == Phase::data) longest_step_.begin(now, ticks);
        auto const longest = std::chrono::ceil<std::chrono::microseconds>(longest_step_.longest());
        store(mine.longest_step_us, static_cast<std::uint64_t>(longest.count()));
    }
    std::uint64_t const what = pack(phase, step, phase == Phase::exchange);
    bool const is_another = (what ^ load(mine.what)) >> 8 != 0;
    store(mine.what, what);
    increment(mine.changes);
    if (!is_another) return;
    if (std::exchange(is_in_range_, true)) cuda::end_range();
    cuda::begin_range(name_of(phase).data(), step);
    if (trace_) trace_->enter(name_of(phase).data(), step, phase == Phase::data);
}

void PhaseBoard::set_waiting(bool is_waiting) {
    Words& mine = words_[own_row_];
    store(mine.what, (load(mine.what) & ~std::uint64_t{1}) | static_cast<std::uint64_t>(is_waiting));
    increment(mine.changes);
}

void PhaseBoard::begin_saving(std::int64_t step) {
    Words& mine = words_[own_row_];
    store(mine.saving, static_cast<std::uint64_t>(step));
    store(mine.saves, load(mine.saves) | 1);
    cuda::begin_range("write", step);
    if (trace_) trace_->begin_writing(step);
}

void PhaseBoard::end_saving() {
    Words& mine = words_[own_row_];
    store(mine.saves, (load(mine.saves) | 1) + 1);
    cuda::end_range();
    if (trace_) trace_->end_writing();
}

void PhaseBoard::show_life() { increment(words_[own_row_].signs_of_life); }

void PhaseBoard::read(std::vector<Row>& rows) const {
    rows.resize(words_.size());
    for (std::size_t i = 0; i < words_.size(); ++i) {
        Words const& words = words_[i];
        Row& row = rows[i];
        std::uint64_t const what = load(words.what);
        row.rank = static_cast<int>(load(words.rank));
        row.pid = static_cast<int>(load(words.pid));
        row.phase = static_cast<Phase>(what >> 8 & 0xff);
        row.step = static_cast<std::int64_t>(what >> 16);
        row.is_waiting = (what & 1) != 0;
        row.longest_step_s = static_cast<double>(load(words.longest_step_us)) * 1e-6;
        row.changes = load(words.changes);
        row.signs_of_life = load(words.signs_of_life);
        row.saves = load(words.saves);
        row.saving.reset();
        if (row.saves % 2 == 1) row.saving = static_cast<std::int64_t>(load(words.saving));
    }
}

bool PhaseBoard::claim_report() {
    std::uint32_t unclaimed = 0;
    return std::atomic_ref(header_->claimed).compare_exchange_strong(unclaimed, 1);
}

bool PhaseBoard::report_is_claimed() const { return load(header_->claimed) != 0; }

void PhaseBoard::set_reported(int exit_code) {
    store(header_->reported, static_cast<std::uint32_t>(exit_code));
}

std::optional<int> PhaseBoard::reported() const {
    std::uint32_t const code = load(header_->reported);
    return code == 0 ? std::nullopt : std::optional(static_cast<int>(code));
}

}  // namespace holdfast::train
