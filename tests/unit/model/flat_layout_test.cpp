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
        make_flat_layout({tensor("a", {3, 2}), tensor("b", {16, 1}), tensor("c", {17, 1}), tensor("d", {1})},
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

TEST(FlatLayout, PlacesWhatDecaysFirst) {
    FlatLayout const layout =
        make_flat_layout({tensor("bn.weight", {20}), tensor("conv.weight", {2, 3, 3, 3}),
                          tensor("bn.bias", {3}), tensor("fc.weight", {10, 2}), tensor("fc.bias", {10})},
                         {tensor("m", {5})}, {tensor("v", {5})});
    std::vector<std::string> names;
    std::vector<std::size_t> offsets;
    for (FlatTensor const& placed : layout.parameters) {
        names.push_back(placed.name);
        offsets.push_back(placed.offset);
    }
    EXPECT_EQ(names,
              (std::vector<std::string>{"bn.weight", "conv.weight", "bn.bias", "fc.weight", "fc.bias"}));
    EXPECT_EQ(layout.decaying_end, 96u);
    EXPECT_EQ(offsets, (std::vector<std::size_t>{96, 0, 128, 64, 144}));
    EXPECT_EQ(layout.means_begin, 160u);
}

TEST(FlatLayout, OfNothingIsTheTail) {
    FlatLayout const layout = make_flat_layout({}, {}, {});
    EXPECT_EQ(layout.num_floats, FlatLayout::tail_size);
    EXPECT_EQ(layout.num_parameters(), 0);
}

}  // namespace
}  // namespace holdfast::model
