// SPDX-License-Identifier: Apache-2.0
// The other order of a buffer of parameters: each convolution's weights at the same place as in FlatLayout, but with the input
// channels last (OHWI in place of OIHW). So the optimizer and the exchange, which go element by element, need not know.
#pragma once

#include <span>

#include "model/flat_layout.hpp"

namespace holdfast::model {

/// Between buffers of layout.num_parameter_floats(): parameters, momentum or gradients. They must not overlap.
void to_channels_last(FlatLayout const& layout, std::span<float const> from, std::span<float> to);
void from_channels_last(FlatLayout const& layout, std::span<float const> from, std::span<float> to);

}  // namespace holdfast::model
