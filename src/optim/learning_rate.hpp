// SPDX-License-Identifier: Apache-2.0
// The learning rate is a pure function of the schedule's settings and the step: there is no scheduler object to save, and a
// resumed run cannot train at another rate.
#pragma once

#include <cstdint>

namespace holdfast::optim {

enum class ScheduleShape {
    step,       ///< torch's StepLR, an epoch being a step of it
    cosine,     ///< down to 0 as torch's CosineAnnealingLR, a step of the run being a step of it
    one_cycle,  ///< torch's OneCycleLR (cosine, cycle_momentum=False): lr / 25 to lr in the warm-up, then down to lr / 250,000
};

struct Schedule {
    ScheduleShape shape = ScheduleShape::step;
    double lr = 0.1;             ///< the highest rate
    std::int64_t step_size = 5;  ///< of `step`: epochs between decays
    double gamma = 0.1;          ///< of `step`: factor of a decay
    std::int64_t warmup_steps =
        0;  ///< before `step` and `cosine`: lr / warmup_steps, 2 lr / warmup_steps, ... lr
    std::int64_t steps_per_epoch = 1;
    std::int64_t total_steps = 1;  ///< of the run: where `cosine` and `one_cycle` end
};

/// Rate of the step that comes after `step` steps; after the last one what the schedule ends with. The decays of `step` are
/// multiplied one by one as torch does, because pow() gives other bits. The same bits on every machine.
double learning_rate_at(Schedule const& schedule, std::int64_t step);

/// cos(pi * x) for x in [0, 1], to 1e-15. In plain arithmetic, since the last bit of a library's cos() is that library's.
double cosine_of_half_turns(double x);

}  // namespace holdfast::optim
