// SPDX-License-Identifier: Apache-2.0
#include "model/channels_last.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace holdfast::model {
namespace {

/// to[column][row] = from[row][column]
void transpose(float const* from, float* to, std::size_t rows, std::size_t columns) {
    for (std::size_t column = 0; column < columns; ++column)
        for (std::size_t row = 0; row < rows; ++row) to[column * rows + row] = from[row * columns + column];
}

enum class Direction { to_channels_last, from_channels_last };

void reorder(FlatLayout const& layout, std::span<float const> from, std::span<float> to,
             Direction direction) {
    assert(from.size() == layout.num_parameter_floats() && to.size() == from.size());
    std::copy(from.begin(), from.end(), to.begin());
    for (FlatTensor const& tensor : layout.parameters) {
        if (tensor.shape.size() != 4) continue;  // OIHW: only convolutions have it
        auto const extent = [&](std::size_t axis) { return static_cast<std::size_t>(tensor.shape[axis]); };
        std::size_t const channels = extent(1);
        std::size_t const taps = extent(2) * extent(3);
        std::size_t const filter = channels * taps;
        for (std::size_t output = 0; output < extent(0); ++output) {
            std::size_t const begin = tensor.offset + output * filter;
            if (direction == Direction::to_channels_last)
                transpose(from.data() + begin, to.data() + begin, channels, taps);
            else
                transpose(from.data() + begin, to.data() + begin, taps, channels);
        }
    }
}

}  // namespace

void to_channels_last(FlatLayout const& layout, std::span<float const> from, std::span<float> to) {
    reorder(layout, from, to, Direction::to_channels_last);
}

void from_channels_last(FlatLayout const& layout, std::span<float const> from, std::span<float> to) {
    reorder(layout, from, to, Direction::from_channels_last);
}

}  // namespace holdfast::model
