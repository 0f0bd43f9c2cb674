// SPDX-License-Identifier: Apache-2.0
#include "model/channels_last.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "model/resnet.hpp"

namespace holdfast::model {
namespace {

/// Each element its own number.
std::vector<float> numbered(std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
    return values;
}

TEST(ChannelsLast, PutsTheInputChannelsOfAConvolutionLast) {
    FlatLayout const layout =
        make_flat_layout({{.name = "conv.weight", .shape = {2, 3, 2, 2}, .offset = 0, .size = 0},
                          {.name = "fc.weight", .shape = {4, 5}, .offset = 0, .size = 0}},
                         {}, {});
    std::vector<float> const from = numbered(layout.num_parameter_floats());
    std::vector<float> to(from.size());
    to_channels_last(layout, from, to);
    for (std::size_t o = 0; o < 2; ++o)
        for (std::size_t i = 0; i < 3; ++i)
            for (std::size_t h = 0; h < 2; ++h)
                for (std::size_t w = 0; w < 2; ++w)
                    EXPECT_EQ(to[((o * 2 + h) * 2 + w) * 3 + i], from[((o * 3 + i) * 2 + h) * 2 + w]);
    std::size_t const convolution = 2 * 3 * 2 * 2;
    for (std::size_t i = convolution; i < from.size(); ++i)
        EXPECT_EQ(to[i], from[i]) << "padding and fc " << i;
}

TEST(ChannelsLast, BackIsWhatItWas) {
    FlatLayout const layout = make_resnet({.depth = 18, .width = 4}).layout;
    std::vector<float> const from = numbered(layout.num_parameter_floats());
    std::vector<float> there(from.size());
    std::vector<float> back(from.size());
    to_channels_last(layout, from, there);
    from_channels_last(layout, there, back);
    EXPECT_NE(there, from);
    EXPECT_EQ(back, from);
}

}  // namespace
}  // namespace holdfast::model
