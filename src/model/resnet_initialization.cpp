// SPDX-License-Identifier: Apache-2.0
#include "model/resnet_initialization.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace holdfast::model {
namespace {

class Initializer {
  public:
    Initializer(FlatLayout const& layout, std::uint64_t seed, std::span<float> parameters)
        : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {
        for (FlatTensor const& tensor : layout.parameters)
            tensors_[tensor.name] =
                at::from_blob(parameters.data() + tensor.offset, tensor.shape, at::kFloat);
    }

    at::Tensor& operator[](std::string const& name) { return tensors_.at(name); }

    /// torch.nn's default for convolutions and linear layers: kaiming_uniform_(a=sqrt(5)) over the fan-in.
    void default_weight(at::Tensor const& weight) {
        double const gain = std::sqrt(2.0 / (1 + std::sqrt(5.0) * std::sqrt(5.0)));
        double const bound = std::sqrt(3.0) * (gain / std::sqrt(static_cast<double>(fan_in(weight))));
        weight.uniform_(-bound, bound, generator_);
    }

    void default_bias(at::Tensor const& bias, at::Tensor const& weight) {
        double const bound = 1 / std::sqrt(static_cast<double>(fan_in(weight)));
        bias.uniform_(-bound, bound, generator_);
    }

    /// kaiming_normal_(mode="fan_out", nonlinearity="relu").
    void kaiming_normal(at::Tensor const& weight) {
        double const fan_out = static_cast<double>(weight.size(0) * weight.size(2) * weight.size(3));
        weight.normal_(0, std::sqrt(2.0) / std::sqrt(fan_out), generator_);
    }

    void batch_norm(std::string const& name) {
        (*this)[name + ".weight"].fill_(1);
        (*this)[name + ".bias"].fill_(0);
    }

  private:
    static std::int64_t fan_in(at::Tensor const& weight) { return weight.numel() / weight.size(0); }

    at::Generator generator_;
    std::unordered_map<std::string, at::Tensor> tensors_;
};

/// The constructor's draws. Convolutions are drawn again below, but the generator has moved on: to be Python's weights, these
/// draws must happen too. torchvision builds a block's projection before the block.
void draw_constructor(Initializer& init, ResNet const& network) {
    init.default_weight(
        at::empty({network.stem.out_channels, network.stem.in_channels, 7, 7}));  // torchvision's own stem
    for (BasicBlock const& block : network.blocks) {
        if (block.has_projection) init.default_weight(init[block.name + ".downsample.0.weight"]);
        init.default_weight(init[block.name + ".conv1.weight"]);
        init.default_weight(init[block.name + ".conv2.weight"]);
    }
    init.default_weight(init["fc.weight"]);
    init.default_bias(init["fc.bias"], init["fc.weight"]);
}

/// torchvision's second pass over all modules.
void draw_convolutions(Initializer& init, ResNet const& network) {
    init.kaiming_normal(at::empty({network.stem.out_channels, network.stem.in_channels, 7, 7}));
    for (BasicBlock const& block : network.blocks) {
        init.kaiming_normal(init[block.name + ".conv1.weight"]);
        init.kaiming_normal(init[block.name + ".conv2.weight"]);
        if (block.has_projection) init.kaiming_normal(init[block.name + ".downsample.0.weight"]);
    }
}

}  // namespace

void initialize_parameters(ResNet const& network, std::uint64_t seed, std::span<float> parameters) {
    assert(parameters.size() == network.layout.num_parameter_floats());
    std::fill(parameters.begin(), parameters.end(), 0.0f);
    Initializer init(network.layout, seed, parameters);
    draw_constructor(init, network);
    draw_convolutions(init, network);
    init.default_weight(init["conv1.weight"]);  // the CIFAR stem replaces conv1 last

    init.batch_norm("bn1");
    for (BasicBlock const& block : network.blocks) {
        init.batch_norm(block.name + ".bn1");
        init.batch_norm(block.name + ".bn2");
        if (block.has_projection) init.batch_norm(block.name + ".downsample.1");
    }
}

}  // namespace holdfast::model
