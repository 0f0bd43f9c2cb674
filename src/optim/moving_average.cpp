// SPDX-License-Identifier: Apache-2.0
#include "optim/moving_average.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>

#include "cuda/update_rules.hpp"

namespace holdfast::optim {

double average_weight_at(double decay, std::int64_t step) {
    return 1 - std::min(decay, static_cast<double>(1 + step) / static_cast<double>(10 + step));
}

void update_average(std::span<float> average, std::span<float const> values, float weight) {
    assert(average.size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        average[i] = cuda::moved_average(average[i], values[i], weight);
}

}  // namespace holdfast::optim
