// SPDX-License-Identifier: Apache-2.0
// The check both implementations of sum_in_order make before they run.
#pragma once

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "cuda/device_runtime.hpp"

namespace holdfast::cuda {

/// Returns how many sums wait at one time, at most.
inline int require_valid_order(std::vector<float const*> const& sources, SumOrder const& order) {
    require(sources.size() <= static_cast<std::size_t>(SumOrder::max_sources), ExitCode::do_not_requeue,
            "a sum of {} gradients (the GPU adds at most {} at once); use fewer ranks", sources.size(),
            static_cast<int>(SumOrder::max_sources));
    int depth = 0;
    int max_depth = 0;
    bool is_valid = true;
    for (std::int16_t const step : order.postfix) {
        is_valid =
            is_valid && (step >= 0 ? step < static_cast<int>(sources.size()) : step == -1 && depth >= 2);
        depth += step >= 0 ? 1 : -1;
        max_depth = std::max(max_depth, depth);
    }
    require(is_valid && depth == 1, ExitCode::internal_error, "a malformed order of summation of {} steps",
            order.postfix.size());
    require(max_depth <= SumOrder::max_depth, ExitCode::do_not_requeue,
            "a sum with {} sums waiting (the GPU keeps at most {}); use fewer ranks", max_depth,
            static_cast<int>(SumOrder::max_depth));
    return max_depth;
}

}  // namespace holdfast::cuda
