// SPDX-License-Identifier: Apache-2.0
#include "optim/learning_rate.hpp"

namespace holdfast::optim {

double learning_rate_at(StepSchedule const& schedule, std::int64_t epoch) {
    double rate = schedule.lr;
    for (std::int64_t decay = 0; decay < epoch / schedule.step_size; ++decay) rate *= schedule.gamma;
    return rate;
}

}  // namespace holdfast::optim
