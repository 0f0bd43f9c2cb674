// SPDX-License-Identifier: Apache-2.0
#include "model/flat_layout.hpp"

#include <gtest/gtest.h>

namespace holdfast::model {
namespace {

FlatTensor tensor(std::string name, std::vector<std::int64_t> shape) {
    return {std::move(name), std::move(shape), 0, 0};
}

TEST(FlatLayout, PlacesTensorsOneAfterTheOtherIn64ByteSteps) {
    FlatLayout const layout =
        make_flat_layout({tensor("a", {3, 2}), tensor("b", {16}), tensor("c", {17}), tensor("d", {1})},
                         {tensor("m", {5}), tensor("n", {16})}, {tensor("v", {5}), tensor("w", {16})});
    std::vector<std::size_t> offsets;
    std::vector<std::size_t> sizes;
    for (auto const* part : {&layout.parameters, &layout.running_means, &layout.running_variances})
        for (FlatTensor const& placed : *part) {
            offsets.push_back(placed.offset);
            sizes.push_back(placed.size);
        }
    EXPECT_EQ(sizes, (std::vector<std::size_t>{6, 16, 17, 1, 5, 16, 5, 16}));
    EXPECT_EQ(offsets, (std::vector<std::size_t>{0, 16, 32, 64, 80, 96, 112, 128}));
    EXPECT_EQ(layout.means_begin, 80u);
    EXPECT_EQ(layout.variances_begin, 112u);
    EXPECT_EQ(layout.tail_begin, 144u);
    EXPECT_EQ(layout.num_floats, 160u);
    EXPECT_EQ(layout.num_parameter_floats(), 80u);
    EXPECT_EQ(layout.num_statistics_floats(), 64u);
    EXPECT_EQ(layout.num_parameters(), 6 + 16 + 17 + 1);
    EXPECT_EQ(layout.parameters[2].name, "c");
    EXPECT_EQ(layout.parameters[0].shape, (std::vector<std::int64_t>{3, 2}));
}

TEST(FlatLayout, OfNothingIsTheTail) {
    FlatLayout const layout = make_flat_layout({}, {}, {});
    EXPECT_EQ(layout.num_floats, FlatLayout::tail_size);
    EXPECT_EQ(layout.num_parameters(), 0);
}

}  // namespace
}  // namespace holdfast::model
