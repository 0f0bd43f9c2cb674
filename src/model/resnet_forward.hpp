// SPDX-License-Identifier: Apache-2.0
// The arithmetic of ResNet, on tensors that the caller owns. Operations, their order and in-place-ness are torchvision's, so
// the bits are those of the Python model.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "model/resnet.hpp"

namespace holdfast::model {

/// A network's tensors, in the order of FlatLayout.
struct ResNetTensors {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> running_means;
    std::vector<at::Tensor> running_variances;
};

enum class BatchNormMode {
    batch_statistics,  ///< training: normalize by the batch; running means and variances receive its mean and unbiased variance
    running_statistics,  ///< evaluation
};

/// images_NCHW float32 -> logits_NK float32, in the memory format that images and weights have. Differentiable with respect to
/// parameters that require a gradient. With another `multiplied_type` convolutions and the linear layer round their inputs to it
/// and give it on, as LibTorch's autocast does; BatchNorm then takes it, too, but computes its statistics in float32.
at::Tensor resnet_forward(ResNet const& network, ResNetTensors const& tensors, at::Tensor const& images_NCHW,
                          BatchNormMode mode, at::ScalarType multiplied_type = at::kFloat);

}  // namespace holdfast::model
