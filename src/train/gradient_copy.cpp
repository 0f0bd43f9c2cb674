// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_copy.hpp"

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "core/vector_clones.hpp"

namespace holdfast::train {
namespace {

/// IEEE 754: an exponent of all ones is a NaN or an infinity. In integers, so that the loop vectorizes.
constexpr std::uint32_t exponent_bits = 0x7f800000;

std::uint32_t is_not_finite(float value) {
    return (std::bit_cast<std::uint32_t>(value) & exponent_bits) == exponent_bits ? 1U : 0U;
}

HOLDFAST_VECTOR_CLONES
bool copy_pass(float* __restrict target, float const* __restrict source, std::size_t size, float scale) {
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < size; ++i) {
        bad |= is_not_finite(source[i]);
        target[i] = scale * source[i];
    }
    return bad == 0;
}

HOLDFAST_VECTOR_CLONES
bool add_pass(float* __restrict target, float const* __restrict source, std::size_t size, float scale) {
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < size; ++i) {
        bad |= is_not_finite(source[i]);
        target[i] = target[i] + scale * source[i];
    }
    return bad == 0;
}

HOLDFAST_VECTOR_CLONES
bool finite_pass(float const* values, std::size_t size) {
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < size; ++i) bad |= is_not_finite(values[i]);
    return bad == 0;
}

}  // namespace

bool copy_scaled(std::span<float> target, std::span<float const> source, float scale) {
    assert(target.size() == source.size());
    return copy_pass(target.data(), source.data(), source.size(), scale);
}

bool add_scaled(std::span<float> target, std::span<float const> source, float scale) {
    assert(target.size() == source.size());
    return add_pass(target.data(), source.data(), source.size(), scale);
}

bool all_finite(std::span<float const> values) { return finite_pass(values.data(), values.size()); }

}  // namespace holdfast::train
