// SPDX-License-Identifier: Apache-2.0
// ResNet-18 and ResNet-34 with torchvision's parameter names and the CIFAR stem (3x3 convolution with stride 2, no max-pooling),
// as a description: names, shapes and the order of layers. The arithmetic is resnet_forward.hpp, the first weights
// resnet_initialization.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/flat_layout.hpp"

namespace holdfast::model {

struct ResNetConfig {
    int depth = 34;  ///< 18 or 34
    int width = 64;  ///< channels of the first stage; 64 is torchvision's
    int num_classes = 10;
    int in_channels = 3;

    /// Basic blocks in each of the four stages. Source: He et al. 2016, table 1.
    std::array<int, 4> blocks() const {
        return depth == 18 ? std::array{2, 2, 2, 2} : std::array{3, 4, 6, 3};
    }
};

struct Convolution {
    std::int64_t in_channels = 0;
    std::int64_t out_channels = 0;
    std::int64_t kernel = 1;
    std::int64_t stride = 1;
    std::int64_t padding() const { return kernel / 2; }
    std::vector<std::int64_t> shape() const { return {out_channels, in_channels, kernel, kernel}; }
};

/// conv1 - bn1 - relu - conv2 - bn2 (+ input, or its 1x1 projection with BatchNorm) - relu.
struct BasicBlock {
    std::string name;  ///< "layer2.0"
    Convolution conv1;
    Convolution conv2;
    bool has_projection = false;
    Convolution projection;
};

struct ResNet {
    ResNetConfig config;
    Convolution stem;
    std::vector<BasicBlock> blocks;
    std::int64_t num_features = 0;  ///< inputs of the final linear layer
    FlatLayout layout;
};

/// Throws Error(usage) for another depth than 18 or 34 or a width below 1.
ResNet make_resnet(ResNetConfig const& config);

/// Floating-point operations of a training step per image of this size: the convolutions and the last layer, forward and both
/// gradients (the first layer's input needs none), a multiplication and its addition being two. What torch.utils.flop_counter
/// counts.
double training_flop_per_image(ResNet const& network, std::int64_t height, std::int64_t width);

}  // namespace holdfast::model
