// SPDX-License-Identifier: Apache-2.0
// How long something took, by the clock that nobody sets.
#pragma once

#include <chrono>

namespace holdfast {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace holdfast
