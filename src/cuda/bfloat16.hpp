// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a float32. As bits, so that no type of CUDA or torch is needed. C++17.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/host_device.hpp"

namespace holdfast::cuda {

/// Rounded to nearest, ties to even, as LibTorch rounds; a NaN stays one.
HOLDFAST_HOST_DEVICE inline std::uint16_t bfloat16_bits(float value) {
    std::uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;  // rounding could carry a NaN over into -0
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Exact.
HOLDFAST_HOST_DEVICE inline float float_of_bfloat16(std::uint16_t upper_half) {
    std::uint32_t const bits = std::uint32_t{upper_half} << 16;
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace holdfast::cuda
