// SPDX-License-Identifier: Apache-2.0
// The one update of BatchNorm's running statistics per step, from the sample-weighted sum of the replicas' batch statistics.
// For one replica these are torch's own bits.
#pragma once

#include <span>

namespace holdfast::optim {

/// running = 0.1 * batch + 0.9 * running, unfused. Source: torch BatchNorm momentum 0.1, measured bits of torch 2.15.
void update_running_mean(std::span<float> running, std::span<float const> batch);

/// running = fma(0.1, batch, 0.9 * running). Source: as above; torch's variance update contracts, its mean update does not.
void update_running_variance(std::span<float> running, std::span<float const> batch);

}  // namespace holdfast::optim
