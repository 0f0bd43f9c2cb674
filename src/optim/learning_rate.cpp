// SPDX-License-Identifier: Apache-2.0
#include "optim/learning_rate.hpp"

#include <algorithm>

namespace holdfast::optim {
namespace {

// Defaults of torch.optim.lr_scheduler.OneCycleLR.
constexpr double div_factor = 25;
constexpr double final_div_factor = 1e4;

/// torch's OneCycleLR._annealing_cos.
double anneal(double start, double end, double share) {
    return end + (start - end) / 2 * (cosine_of_half_turns(share) + 1);
}

double one_cycle(Schedule const& schedule, std::int64_t step) {
    double const first = schedule.lr / div_factor;
    // Step number of the highest rate; -1 without warm-up, as torch has it for pct_start=0.
    std::int64_t const top = schedule.warmup_steps - 1;
    if (step < top) return anneal(first, schedule.lr, static_cast<double>(step) / static_cast<double>(top));
    if (step == top) return schedule.lr;
    return anneal(schedule.lr, first / final_div_factor,
                  static_cast<double>(step - top) / static_cast<double>(schedule.total_steps - 1 - top));
}

double stepwise(Schedule const& schedule, std::int64_t step) {
    double rate = schedule.lr;
    std::int64_t const decays = step / schedule.steps_per_epoch / schedule.step_size;
    for (std::int64_t decay = 0; decay < decays; ++decay) rate *= schedule.gamma;
    return rate;
}

double cosine(Schedule const& schedule, std::int64_t step) {
    if (step >= schedule.total_steps) return 0;
    std::int64_t const begin = schedule.warmup_steps;
    return anneal(schedule.lr, 0,
                  static_cast<double>(step - begin) / static_cast<double>(schedule.total_steps - begin));
}

}  // namespace

double cosine_of_half_turns(double x) {
    // Taylor series in Horner's form, on [0, pi/4] only: cos to the term of degree 16, sin to that of degree 17, which leave out
    // less than 1e-17.
    constexpr double pi = 3.14159265358979323846;
    if (x > 0.5) return -cosine_of_half_turns(1 - x);
    bool const is_sine = x > 0.25;
    double const angle = pi * (is_sine ? 0.5 - x : x);
    double const square = angle * angle;
    double sum = 1;
    for (int degree = is_sine ? 17 : 16; degree >= 2; degree -= 2)
        sum = 1 - square / (degree * (degree - 1)) * sum;
    return is_sine ? angle * sum : sum;
}

double learning_rate_at(Schedule const& schedule, std::int64_t step) {
    if (schedule.shape == ScheduleShape::one_cycle)
        return one_cycle(schedule, std::min(step, schedule.total_steps - 1));
    if (step < schedule.warmup_steps)
        return schedule.lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
    return schedule.shape == ScheduleShape::cosine ? cosine(schedule, step) : stepwise(schedule, step);
}

}  // namespace holdfast::optim
