// SPDX-License-Identifier: Apache-2.0
#include "model/resnet_forward.hpp"

#include <array>
#include <cassert>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

namespace holdfast::model {
namespace {

/// Hands out the tensors layer by layer: forward order is layout order.
class Layers {
  public:
    Layers(ResNetTensors const& tensors, BatchNormMode mode, at::ScalarType multiplied_type)
        : tensors_(tensors),
          training_(mode == BatchNormMode::batch_statistics),
          multiplied_type_(multiplied_type) {}

    at::Tensor convolution(at::Tensor const& input, Convolution const& convolution) {
        std::array const stride{convolution.stride, convolution.stride};
        std::array const padding{convolution.padding(), convolution.padding()};
        return at::conv2d(rounded(input), rounded(parameter()), {}, stride, padding);
    }

    at::Tensor batch_norm(at::Tensor const& input) {
        at::Tensor const& weight = parameter();
        at::Tensor const& bias = parameter();
        std::size_t const layer = next_batch_norm_++;
        // Momentum 1: the running tensors hold this batch's own statistics afterwards (architecture: replica batch statistics).
        // eps: torchvision's and torch's default.
        return at::batch_norm(input, weight, bias, tensors_.running_means[layer],
                              tensors_.running_variances[layer], training_,
                              /*momentum=*/1.0, /*eps=*/1e-5, /*cudnn_enabled=*/true);
    }

    at::Tensor linear(at::Tensor const& input) {
        at::Tensor const weight = rounded(parameter());
        return at::linear(rounded(input), weight, rounded(parameter())).to(at::kFloat);
    }

    bool are_used_up() const { return next_parameter_ == tensors_.parameters.size(); }

  private:
    at::Tensor const& parameter() { return tensors_.parameters[next_parameter_++]; }
    at::Tensor rounded(at::Tensor const& values) const { return values.to(multiplied_type_); }

    ResNetTensors const& tensors_;
    bool training_;
    at::ScalarType multiplied_type_;
    std::size_t next_parameter_ = 0;
    std::size_t next_batch_norm_ = 0;
};

at::Tensor basic_block(Layers& layers, BasicBlock const& block, at::Tensor const& input) {
    at::Tensor out = layers.batch_norm(layers.convolution(input, block.conv1));
    out.relu_();
    out = layers.batch_norm(layers.convolution(out, block.conv2));
    out += block.has_projection ? layers.batch_norm(layers.convolution(input, block.projection)) : input;
    return out.relu_();
}

}  // namespace

at::Tensor resnet_forward(ResNet const& network, ResNetTensors const& tensors, at::Tensor const& images_NCHW,
                          BatchNormMode mode, at::ScalarType multiplied_type) {
    Layers layers(tensors, mode, multiplied_type);
    at::Tensor x = layers.batch_norm(layers.convolution(images_NCHW, network.stem));
    x.relu_();
    for (BasicBlock const& block : network.blocks) x = basic_block(layers, block, x);
    x = at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
    at::Tensor logits_NK = layers.linear(x);
    assert(layers.are_used_up());
    return logits_NK;
}

}  // namespace holdfast::model
