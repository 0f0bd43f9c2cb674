// SPDX-License-Identifier: Apache-2.0
#include "optim/running_statistics.hpp"

#include <cassert>
#include <cmath>
#include <cstddef>

namespace holdfast::optim {

void update_running_mean(std::span<float> running, std::span<float const> batch) {
    assert(running.size() == batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) running[i] = 0.1f * batch[i] + 0.9f * running[i];
}

void update_running_variance(std::span<float> running, std::span<float const> batch) {
    assert(running.size() == batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) running[i] = std::fma(0.1f, batch[i], 0.9f * running[i]);
}

}  // namespace holdfast::optim
