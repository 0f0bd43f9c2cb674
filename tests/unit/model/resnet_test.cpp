// SPDX-License-Identifier: Apache-2.0
#include "model/resnet.hpp"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "support/expect_error.hpp"

namespace holdfast::model {
namespace {

std::vector<FlatTensor> all_tensors(FlatLayout const& layout) {
    std::vector<FlatTensor> all = layout.parameters;
    all.insert(all.end(), layout.running_means.begin(), layout.running_means.end());
    all.insert(all.end(), layout.running_variances.begin(), layout.running_variances.end());
    return all;
}

TEST(ResNet, HasAsManyParametersAsTorchvisionsWithTheCifarStem) {
    // torchvision's 11,689,512 and 21,797,672 with 10 classes in place of 1000 and a 3x3 stem in place of 7x7.
    std::int64_t const difference = (512 + 1) * 990 + 3 * 64 * (7 * 7 - 3 * 3);
    EXPECT_EQ(make_resnet({.depth = 18}).layout.num_parameters(), 11'689'512 - difference);
    EXPECT_EQ(make_resnet({.depth = 18}).layout.num_parameters(), 11'173'962);
    EXPECT_EQ(make_resnet({.depth = 34}).layout.num_parameters(), 21'797'672 - difference);
    EXPECT_EQ(make_resnet({.depth = 34}).layout.num_parameters(), 21'282'122);
}

TEST(ResNet, TakesTheFlopThatTorchCounts) {
    // Source: torch.utils.flop_counter.FlopCounterMode, torch 2.15, around forward and backward of these networks.
    EXPECT_EQ(training_flop_per_image(make_resnet({.depth = 34}), 32, 32), 1'738'242'048.0);
    EXPECT_EQ(training_flop_per_image(make_resnet({.depth = 18}), 32, 32), 832'272'384.0);
    EXPECT_EQ(training_flop_per_image(make_resnet({.depth = 18, .width = 16}), 32, 32), 52'354'560.0);
}

TEST(ResNet, HasAsManyTensorsAsTorchvisions) {
    for (auto const& [depth, parameters, batch_norms] :
         {std::tuple{18, 62u, 20u}, std::tuple{34, 110u, 36u}}) {
        FlatLayout const layout = make_resnet({.depth = depth}).layout;
        EXPECT_EQ(layout.parameters.size(), parameters);
        EXPECT_EQ(layout.running_means.size(), batch_norms);
        EXPECT_EQ(layout.running_variances.size(), batch_norms);
    }
}

TEST(ResNet, NamesAndOrderAreTorchvisions) {
    FlatLayout const layout = make_resnet({.depth = 18}).layout;
    std::vector<std::string> names;
    for (FlatTensor const& tensor : layout.parameters) names.push_back(tensor.name);
    std::vector<std::string> const expected{"conv1.weight",
                                            "bn1.weight",
                                            "bn1.bias",
                                            "layer1.0.conv1.weight",
                                            "layer1.0.bn1.weight",
                                            "layer1.0.bn1.bias",
                                            "layer1.0.conv2.weight",
                                            "layer1.0.bn2.weight",
                                            "layer1.0.bn2.bias",
                                            "layer1.1.conv1.weight",
                                            "layer1.1.bn1.weight",
                                            "layer1.1.bn1.bias",
                                            "layer1.1.conv2.weight",
                                            "layer1.1.bn2.weight",
                                            "layer1.1.bn2.bias",
                                            "layer2.0.conv1.weight",
                                            "layer2.0.bn1.weight",
                                            "layer2.0.bn1.bias",
                                            "layer2.0.conv2.weight",
                                            "layer2.0.bn2.weight",
                                            "layer2.0.bn2.bias",
                                            "layer2.0.downsample.0.weight",
                                            "layer2.0.downsample.1.weight",
                                            "layer2.0.downsample.1.bias",
                                            "layer2.1.conv1.weight"};
    ASSERT_GT(names.size(), expected.size());
    EXPECT_EQ((std::vector<std::string>(names.begin(),
                                        names.begin() + static_cast<std::ptrdiff_t>(expected.size()))),
              expected);
    EXPECT_EQ(names[names.size() - 2], "fc.weight");
    EXPECT_EQ(names.back(), "fc.bias");
    EXPECT_EQ(layout.running_means.front().name, "bn1.running_mean");
    EXPECT_EQ(layout.running_variances.front().name, "bn1.running_var");
    EXPECT_EQ(layout.running_means.back().name, "layer4.1.bn2.running_mean");

    std::vector<FlatTensor> const all = all_tensors(make_resnet({.depth = 34}).layout);
    std::set<std::string> unique;
    for (FlatTensor const& tensor : all) unique.insert(tensor.name);
    EXPECT_EQ(unique.size(), all.size());
    EXPECT_TRUE(unique.contains("layer3.5.conv2.weight"));
    EXPECT_FALSE(unique.contains("layer3.6.conv1.weight"));
    EXPECT_FALSE(unique.contains("layer1.0.downsample.0.weight"));
    EXPECT_FALSE(unique.contains("layer2.1.downsample.0.weight"));
}

TEST(ResNet, ShapesOfTheLayers) {
    ResNet const network = make_resnet({.depth = 34, .width = 64, .num_classes = 7, .in_channels = 1});
    using Shape = std::vector<std::int64_t>;
    for (FlatTensor const& tensor : network.layout.parameters) {
        if (tensor.name == "conv1.weight") {
            EXPECT_EQ(tensor.shape, (Shape{64, 1, 3, 3}));
        }
        if (tensor.name == "layer1.0.conv1.weight") {
            EXPECT_EQ(tensor.shape, (Shape{64, 64, 3, 3}));
        }
        if (tensor.name == "layer2.0.conv1.weight") {
            EXPECT_EQ(tensor.shape, (Shape{128, 64, 3, 3}));
        }
        if (tensor.name == "layer4.0.downsample.0.weight") {
            EXPECT_EQ(tensor.shape, (Shape{512, 256, 1, 1}));
        }
        if (tensor.name == "layer4.2.bn2.bias") {
            EXPECT_EQ(tensor.shape, (Shape{512}));
        }
        if (tensor.name == "fc.weight") {
            EXPECT_EQ(tensor.shape, (Shape{7, 512}));
        }
        if (tensor.name == "fc.bias") {
            EXPECT_EQ(tensor.shape, (Shape{7}));
        }
    }
    EXPECT_EQ(network.stem.stride, 2);
    EXPECT_EQ(network.blocks.size(), 16u);
}

TEST(ResNet, EveryTensorIsAlignedAndInsideItsPart) {
    for (int width : {1, 3, 4, 64}) {
        FlatLayout const layout = make_resnet({.depth = 34, .width = width}).layout;
        std::vector<FlatTensor> tensors = all_tensors(layout);
        std::ranges::sort(tensors, {}, &FlatTensor::offset);  // those that decay lie before the others
        std::size_t free = 0;
        for (FlatTensor const& tensor : tensors) {
            EXPECT_EQ(tensor.offset % 16, 0u) << tensor.name;
            EXPECT_GE(tensor.offset, free) << tensor.name;
            EXPECT_LT(tensor.offset - free, 16u) << tensor.name;
            free = tensor.offset + tensor.size;
        }
        EXPECT_EQ(tensors.front().offset, 0u);
        EXPECT_EQ(layout.running_means.front().offset, layout.means_begin);
        EXPECT_EQ(layout.running_variances.front().offset, layout.variances_begin);
        EXPECT_LE(free, layout.tail_begin);
        EXPECT_EQ(layout.num_floats, layout.tail_begin + FlatLayout::tail_size);
        EXPECT_EQ(layout.num_floats % 16, 0u);
    }
}

TEST(ResNet, RefusesWhatIsNone) {
    for (int depth : {0, 50, 101})
        test::expect_error([&] { make_resnet({.depth = depth}); }, {std::to_string(depth), "18 or 34"},
                           ExitCode::usage);
    for (int width : {0, -4})
        test::expect_error([&] { make_resnet({.width = width}); }, {std::to_string(width), "width"},
                           ExitCode::usage);
}

}  // namespace
}  // namespace holdfast::model
