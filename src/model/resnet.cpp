// SPDX-License-Identifier: Apache-2.0
#include "model/resnet.hpp"

#include <utility>

#include "core/error.hpp"

namespace holdfast::model {
namespace {

std::vector<BasicBlock> make_blocks(ResNetConfig const& config) {
    std::vector<BasicBlock> blocks;
    std::int64_t channels = config.width;
    for (int stage = 0; stage < 4; ++stage) {
        std::int64_t const out = std::int64_t{config.width} << stage;
        for (int i = 0; i < config.blocks()[static_cast<std::size_t>(stage)]; ++i) {
            std::int64_t const stride = stage > 0 && i == 0 ? 2 : 1;
            BasicBlock block;
            block.name = fmt::format("layer{}.{}", stage + 1, i);
            block.conv1 = {channels, out, 3, stride};
            block.conv2 = {out, out, 3, 1};
            block.has_projection = stride != 1 || channels != out;
            if (block.has_projection) block.projection = {channels, out, 1, stride};
            blocks.push_back(std::move(block));
            channels = out;
        }
    }
    return blocks;
}

/// Lists the tensors in torchvision's order while walking the layers.
class LayoutBuilder {
  public:
    void convolution(std::string const& name, Convolution const& convolution) {
        add(parameters_, name + ".weight", convolution.shape());
    }

    void batch_norm(std::string const& name, std::int64_t channels) {
        add(parameters_, name + ".weight", {channels});
        add(parameters_, name + ".bias", {channels});
        add(means_, name + ".running_mean", {channels});
        add(variances_, name + ".running_var", {channels});
    }

    void linear(std::string const& name, std::int64_t inputs, std::int64_t outputs) {
        add(parameters_, name + ".weight", {outputs, inputs});
        add(parameters_, name + ".bias", {outputs});
    }

    FlatLayout finish() {
        return make_flat_layout(std::move(parameters_), std::move(means_), std::move(variances_));
    }

  private:
    static void add(std::vector<FlatTensor>& tensors, std::string name, std::vector<std::int64_t> shape) {
        tensors.push_back({std::move(name), std::move(shape), 0, 0});
    }

    std::vector<FlatTensor> parameters_;
    std::vector<FlatTensor> means_;
    std::vector<FlatTensor> variances_;
};

struct ImageSize {
    std::int64_t height = 0;
    std::int64_t width = 0;
};

ImageSize size_after(Convolution const& convolution, ImageSize size) {
    auto const after = [&](std::int64_t length) {
        return (length + 2 * convolution.padding() - convolution.kernel) / convolution.stride + 1;
    };
    return {after(size.height), after(size.width)};
}

double forward_flop(Convolution const& convolution, ImageSize output) {
    return 2.0 * static_cast<double>(convolution.in_channels * convolution.out_channels) *
           static_cast<double>(convolution.kernel * convolution.kernel * output.height * output.width);
}

}  // namespace

ResNet make_resnet(ResNetConfig const& config) {
    require(config.depth == 18 || config.depth == 34, ExitCode::usage,
            "no ResNet of depth {} (choose 18 or 34)", config.depth);
    require(config.width >= 1, ExitCode::usage,
            "a ResNet of width {} has no channels (choose 1 or more; 64 is the standard)", config.width);
    ResNet network;
    network.config = config;
    network.stem = {config.in_channels, config.width, 3, 2};
    network.blocks = make_blocks(config);
    network.num_features = std::int64_t{config.width} * 8;

    LayoutBuilder layout;
    layout.convolution("conv1", network.stem);
    layout.batch_norm("bn1", network.stem.out_channels);
    for (BasicBlock const& block : network.blocks) {
        layout.convolution(block.name + ".conv1", block.conv1);
        layout.batch_norm(block.name + ".bn1", block.conv1.out_channels);
        layout.convolution(block.name + ".conv2", block.conv2);
        layout.batch_norm(block.name + ".bn2", block.conv2.out_channels);
        if (block.has_projection) {
            layout.convolution(block.name + ".downsample.0", block.projection);
            layout.batch_norm(block.name + ".downsample.1", block.projection.out_channels);
        }
    }
    layout.linear("fc", network.num_features, config.num_classes);
    network.layout = layout.finish();
    return network;
}

double training_flop_per_image(ResNet const& network, std::int64_t height, std::int64_t width) {
    ImageSize size = size_after(network.stem, {height, width});
    double const stem = forward_flop(network.stem, size);
    double rest = 2.0 * static_cast<double>(network.num_features * network.config.num_classes);
    for (BasicBlock const& block : network.blocks) {
        size = size_after(block.conv1, size);
        rest += forward_flop(block.conv1, size) + forward_flop(block.conv2, size);
        if (block.has_projection) rest += forward_flop(block.projection, size);
    }
    return 2 * stem + 3 * rest;
}

}  // namespace holdfast::model
