// SPDX-License-Identifier: Apache-2.0
// Floats of very different magnitudes, for tests of bits: another order or another rounding shows in some of them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace holdfast::test {

inline std::vector<float> random_floats(std::size_t size, std::uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<float> values(size);
    for (float& value : values) {
        float const fraction = static_cast<float>(engine() >> 8) / static_cast<float>(1 << 24) - 0.5f;
        value = std::ldexp(fraction, static_cast<int>(engine() % 24) - 12);
    }
    return values;
}

inline bool equal_bytes(std::span<float const> a, std::span<float const> b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace holdfast::test
