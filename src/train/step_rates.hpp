// SPDX-License-Identifier: Apache-2.0
// What the optimizer does in a step, as a function of the run's settings and the step alone.
#pragma once

#include <cstdint>

#include "optim/learning_rate.hpp"
#include "optim/sgd.hpp"
#include "train/settings.hpp"

namespace holdfast::train {

optim::Schedule learning_rate_schedule(Settings const& settings, std::int64_t steps_per_epoch);

/// Of the step that comes after `step` steps, at this learning rate.
optim::SgdRates sgd_rates(Settings const& settings, double lr, std::int64_t step);

}  // namespace holdfast::train
