// SPDX-License-Identifier: Apache-2.0
// The exponential moving average (EMA) of parameters and running statistics over the steps, which the test accuracy is measured
// with where one is kept. How much a step counts is a function of the step.
#pragma once

#include <cstdint>
#include <span>

namespace holdfast::optim {

/// Weight of the values after the step that follows `step` steps: 1 - min(decay, (1 + step) / (10 + step)). An average of the
/// last 1 / (1 - decay) steps in the long run, and of fewer at the beginning, when the first weights would weigh too much.
/// Source: ExponentialMovingAverage of TensorFlow (num_updates), for updates counted from 0.
double average_weight_at(double decay, std::int64_t step);

/// cuda::moved_average of every element. Both have one size.
void update_average(std::span<float> average, std::span<float const> values, float weight);

}  // namespace holdfast::optim
