// SPDX-License-Identifier: Apache-2.0
// When a checkpoint is due: as the flags say, or, without any, as often as saving costs at most 1 % of the time. A pure
// function of what it is told, so rank 0 alone keeps one.
#pragma once

#include <cstdint>
#include <optional>

namespace holdfast::train {

/// What the flags say; nothing given means automatic. 0 turns one kind off.
struct SaveEvery {
    std::optional<std::int64_t> epochs;
    std::optional<std::int64_t> steps;
    std::optional<double> minutes;

    bool is_automatic() const { return !epochs && !steps && !minutes; }
};

class SaveSchedule {
  public:
    /// Times are seconds of any one clock that only goes forward.
    SaveSchedule(SaveEvery every, std::int64_t steps_per_epoch, double now_s);

    /// After every step: whether a checkpoint is due. Stays true until save_started, so what a slow disk delays is made up for.
    bool is_due_after(std::int64_t step, double now_s);
    void save_started(double now_s);
    /// `cost_s`: for how long saving kept the step waiting or a core busy.
    void save_done(double cost_s) { cost_s_ = cost_s; }
    /// The state was not saved (a full disk, say): due again in a while.
    void save_failed(double now_s) { retry_s_ = now_s + retry_after_s; }

    static constexpr double largest_overhead = 0.01;
    static constexpr double shortest_interval_s = 60;  ///< automatic, inside an epoch: what a kill may cost
    static constexpr double retry_after_s = 30;

  private:
    bool is_due(std::int64_t step, double now_s) const;

    SaveEvery every_;
    std::int64_t steps_per_epoch_;
    double last_s_;  ///< when the last save started, or this launch
    double cost_s_ = 0;
    std::optional<double> retry_s_;
    bool is_due_ = false;
};

}  // namespace holdfast::train
