// SPDX-License-Identifier: Apache-2.0
#include "model/resnet_forward.hpp"

#include <cmath>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

namespace holdfast::model {
namespace {

/// All convolutions zero, BatchNorm scale 1 and shift 0, fc.bias 0, 1, 2, ...
ResNetTensors zero_tensors(ResNet const& network) {
    ResNetTensors tensors;
    for (FlatTensor const& tensor : network.layout.parameters) {
        bool const is_scale = tensor.shape.size() == 1 && tensor.name.ends_with("weight");
        tensors.parameters.push_back(is_scale ? at::full(tensor.shape, 1.0f) : at::zeros(tensor.shape));
    }
    for (FlatTensor const& tensor : network.layout.running_means)
        tensors.running_means.push_back(at::zeros(tensor.shape));
    for (FlatTensor const& tensor : network.layout.running_variances)
        tensors.running_variances.push_back(at::full(tensor.shape, 1.0f));
    at::Tensor& bias = tensors.parameters.back();
    for (std::int64_t k = 0; k < bias.numel(); ++k) bias[k] = static_cast<float>(k);
    return tensors;
}

TEST(ResNetForward, EveryLayerIsUsedAndLogitsHaveOneRowAnImage) {
    for (int depth : {18, 34}) {
        at::NoGradGuard const no_gradients;
        ResNet const network = make_resnet({.depth = depth, .width = 2, .num_classes = 7});
        ResNetTensors const tensors = zero_tensors(network);
        at::Tensor const logits =
            resnet_forward(network, tensors, at::rand({3, 3, 32, 32}), BatchNormMode::running_statistics);
        ASSERT_EQ(logits.sizes(), (at::IntArrayRef{3, 7}));
        for (std::int64_t n = 0; n < 3; ++n) EXPECT_TRUE(at::equal(logits[n], tensors.parameters.back()));
    }
}

TEST(ResNetForward, TrainingLeavesMeanAndUnbiasedVarianceOfTheBatch) {
    at::NoGradGuard const no_gradients;
    ResNet const network = make_resnet({.depth = 18, .width = 2});
    ResNetTensors const tensors = zero_tensors(network);
    // Channel 0 of the stem passes the middle tap of input channel 1 on: pixels (2i, 2j).
    tensors.parameters[0][0][1][1][1] = 1.0f;
    at::Tensor const images = at::rand({2, 3, 32, 32});
    resnet_forward(network, tensors, images, BatchNormMode::batch_statistics);

    double sum = 0;
    double squares = 0;
    int count = 0;
    for (int n = 0; n < 2; ++n)
        for (int i = 0; i < 32; i += 2)
            for (int j = 0; j < 32; j += 2, ++count) {
                double const pixel = static_cast<double>(images[n][1][i][j].item<float>());
                sum += pixel;
                squares += pixel * pixel;
            }
    double const mean = sum / count;
    double const variance = (squares - count * mean * mean) / (count - 1);
    EXPECT_EQ(count, 512);
    EXPECT_NEAR(tensors.running_means[0][0].item<double>(), mean, 1e-6);
    EXPECT_NEAR(tensors.running_variances[0][0].item<double>(), variance, 1e-6);
    EXPECT_GT(std::abs(variance / (count - 1)), 1e-5) << "a biased variance would pass";
    EXPECT_EQ(tensors.running_means[0][1].item<float>(), 0.0f);
}

TEST(ResNetForward, RoundsWhereAutocastDoes) {
    at::NoGradGuard const no_gradients;
    ResNet const network = make_resnet({.depth = 18, .width = 4});
    ResNetTensors const tensors = zero_tensors(network);
    for (at::Tensor const& parameter : tensors.parameters)
        if (parameter.dim() > 1) parameter.uniform_(-0.3, 0.3);
    at::Tensor const images = at::rand({4, 3, 32, 32});
    auto const forward = [&](at::ScalarType type) {
        return resnet_forward(network, tensors, images, BatchNormMode::batch_statistics, type);
    };
    at::Tensor const ours = forward(at::kBFloat16);
    at::Tensor const our_variance = tensors.running_variances.back().clone();
    EXPECT_FALSE(at::equal(ours, forward(at::kFloat)));
    EXPECT_EQ(ours.scalar_type(), at::kFloat);

    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::Tensor const theirs = forward(at::kFloat).to(at::kFloat);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_TRUE(at::equal(ours, theirs));
    EXPECT_TRUE(at::equal(our_variance, tensors.running_variances.back()));
}

TEST(ResNetForward, EvaluationChangesNoStatistics) {
    at::NoGradGuard const no_gradients;
    ResNet const network = make_resnet({.depth = 18, .width = 2});
    ResNetTensors const tensors = zero_tensors(network);
    tensors.parameters[0].fill_(0.1f);
    resnet_forward(network, tensors, at::rand({2, 3, 32, 32}), BatchNormMode::running_statistics);
    for (std::size_t layer = 0; layer < tensors.running_means.size(); ++layer) {
        EXPECT_TRUE(at::equal(tensors.running_means[layer], at::zeros_like(tensors.running_means[layer])));
        EXPECT_TRUE(
            at::equal(tensors.running_variances[layer], at::ones_like(tensors.running_variances[layer])));
    }
}

}  // namespace
}  // namespace holdfast::model
