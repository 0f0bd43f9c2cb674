// SPDX-License-Identifier: Apache-2.0
// Writes a gradient into its place in the flat buffer, scaled by the replica's share of the samples, and looks for NaN and
// infinity on the way.
#pragma once

#include <span>

namespace holdfast::train {

/// target = scale * source. Returns whether all of the source is finite. Spans have one size.
bool copy_scaled(std::span<float> target, std::span<float const> source, float scale);

/// target = target + (scale * source), unfused: the bits of a leaf written first and added later.
bool add_scaled(std::span<float> target, std::span<float const> source, float scale);

/// Whether there is no NaN and no infinity in `values`.
bool all_finite(std::span<float const> values);

}  // namespace holdfast::train
