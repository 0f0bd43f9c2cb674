// SPDX-License-Identifier: Apache-2.0
// The learning rate is a pure function of the schedule's settings and the epoch: there is no scheduler object to save, and a
// resumed run cannot train at another rate.
#pragma once

#include <cstdint>

namespace holdfast::optim {

/// torch.optim.lr_scheduler.StepLR: lr is multiplied by gamma every step_size epochs.
struct StepSchedule {
    double lr = 0.1;
    std::int64_t step_size = 5;  ///< epochs
    double gamma = 0.1;
};

/// Rate of all steps of `epoch`; multiplied decay by decay as torch does, because pow() gives other bits.
double learning_rate_at(StepSchedule const& schedule, std::int64_t epoch);

}  // namespace holdfast::optim
