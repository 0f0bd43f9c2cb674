// SPDX-License-Identifier: Apache-2.0
#include "train/save_schedule.hpp"

#include <algorithm>

namespace holdfast::train {

SaveSchedule::SaveSchedule(SaveEvery every, std::int64_t steps_per_epoch, double now_s)
    : every_(every), steps_per_epoch_(steps_per_epoch), last_s_(now_s) {}

bool SaveSchedule::is_due_after(std::int64_t step, double now_s) {
    is_due_ = is_due_ || is_due(step, now_s);
    return is_due_;
}

bool SaveSchedule::is_due(std::int64_t step, double now_s) const {
    if (retry_s_ && now_s >= *retry_s_) return true;
    double const elapsed_s = now_s - last_s_;
    auto const is_multiple = [&](std::int64_t every) { return every > 0 && step % every == 0; };
    if (every_.is_automatic()) {
        double const interval_s = cost_s_ / largest_overhead;
        return elapsed_s >=
               (is_multiple(steps_per_epoch_) ? interval_s : std::max(interval_s, shortest_interval_s));
    }
    double const minutes = every_.minutes.value_or(0);
    return is_multiple(every_.steps.value_or(0)) ||
           is_multiple(every_.epochs.value_or(0) * steps_per_epoch_) ||
           (minutes > 0 && elapsed_s >= 60 * minutes);
}

void SaveSchedule::save_started(double now_s) {
    is_due_ = false;
    retry_s_.reset();
    last_s_ = now_s;
}

}  // namespace holdfast::train
