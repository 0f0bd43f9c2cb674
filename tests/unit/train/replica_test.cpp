// SPDX-License-Identifier: Apache-2.0
#include "train/replica.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "data/synthetic_images.hpp"
#include "model/channels_last.hpp"
#include "model/resnet_forward.hpp"
#include "support/random_floats.hpp"
#include "support/small_training.hpp"
#include "train/compute_thread.hpp"

namespace holdfast::train {
namespace {

using data::ReplicaBatch;
using test::equal_bytes;
using test::image_shape;
using test::random_batch;

enum class Path {
    host,
    device,       ///< that of GPUs, on the host implementation of the device runtime
    device_nhwc,  ///< with channels last
    device_graphs,
};

class ReplicaTest : public testing::TestWithParam<Path> {
  protected:
    ReplicaTest() { prepare_compute_thread(1); }

    /// By a replica that has computed nothing before, unless one is passed.
    std::vector<float> trained(ReplicaBatch const& batch, float weight, Replica* replica = nullptr) {
        std::vector<float> buffer(layout().num_floats);
        Replica fresh(small_.network, small_.tensors, device());
        (replica != nullptr ? *replica : fresh)
            .train(batch, image_shape, {buffer, weight, GradientWrite::overwrite});
        return buffer;
    }

    ComputeDevice device() const {
        return {.stream = GetParam() == Path::host ? nullptr : &stream_,
                .layout = GetParam() == Path::device_nhwc ? Layout::nhwc : Layout::nchw,
                .graphs = GetParam() == Path::device_graphs ? CudaGraphs::on : CudaGraphs::off};
    }
    model::FlatLayout const& layout() const { return small_.network.layout; }
    float tail(std::vector<float> const& buffer, Tail index) const {
        return buffer[layout().tail_begin + index];
    }
    void make_logits_the_bias() { std::ranges::fill(small_.parameter("fc.weight"), 0.0f); }

    test::SmallNetwork small_;
    cuda::Stream stream_;
};
std::string name_of_path(testing::TestParamInfo<Path> const& test) {
    static std::map<Path, std::string> const names{{Path::host, "Host"},
                                                   {Path::device, "Device"},
                                                   {Path::device_nhwc, "DeviceNhwc"},
                                                   {Path::device_graphs, "DeviceGraphs"}};
    return names.at(test.param);
}
INSTANTIATE_TEST_SUITE_P(On, ReplicaTest,
                         testing::Values(Path::host, Path::device, Path::device_nhwc, Path::device_graphs),
                         name_of_path);

/// The largest difference, as a share of the largest value.
float difference(std::span<float const> a, std::span<float const> b) {
    float largest = 0;
    float most_apart = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::abs(b[i]));
        most_apart = std::max(most_apart, std::abs(a[i] - b[i]));
    }
    return most_apart / largest;
}

class ReplicaOnDevice : public testing::Test {
  protected:
    ReplicaOnDevice() { prepare_compute_thread(1); }

    test::SmallNetwork const small{1};
    model::FlatLayout const& layout = small.network.layout;
    cuda::Stream const stream;
    ReplicaBatch const batch = random_batch(8, 1);
};

/// What a device with channels last has in its gradient buffer is the same gradient, in its order.
TEST_F(ReplicaOnDevice, ChannelsLastIsAnOrderAndNothingElse) {
    std::vector<float> expected(layout.num_floats);
    Replica(small.network, small.tensors, {.stream = &stream})
        .train(batch, image_shape, {expected, 1.0f, GradientWrite::overwrite});

    std::vector<float> memory = small.memory;
    StateTensors const tensors = StateTensors::in(memory, layout);
    model::to_channels_last(layout, small.tensors.parameters, tensors.parameters);
    std::vector<float> gradient(layout.num_floats);
    Replica replica(small.network, tensors, {.stream = &stream, .layout = Layout::nhwc});
    replica.train(batch, image_shape, {gradient, 1.0f, GradientWrite::overwrite});
    std::vector<float> reordered = gradient;
    model::from_channels_last(layout, std::span(gradient).first(layout.num_parameter_floats()),
                              std::span(reordered).first(layout.num_parameter_floats()));
    EXPECT_LT(difference(reordered, expected), 1e-5f);
    EXPECT_GT(difference(gradient, expected), 1e-2f) << "the order does not matter to this test";
    EXPECT_NEAR(replica.evaluate(batch, image_shape).loss,
                Replica(small.network, small.tensors).evaluate(batch, image_shape).loss, 1e-4);
}

TEST_F(ReplicaOnDevice, Bf16IsNearFp32AndIsNotFp32) {
    std::vector<float> fp32(layout.num_floats);
    std::vector<float> bf16(layout.num_floats);
    for (Layout const order : {Layout::nchw, Layout::nhwc}) {
        Replica(small.network, small.tensors, {.stream = &stream, .layout = order})
            .train(batch, image_shape, {fp32, 1.0f, GradientWrite::overwrite});
        Replica(small.network, small.tensors,
                {.stream = &stream, .precision = Precision::bf16, .layout = order})
            .train(batch, image_shape, {bf16, 1.0f, GradientWrite::overwrite});
        EXPECT_EQ(bf16[layout.tail_begin + tail_not_finite], 0.0f);
        EXPECT_NEAR(bf16[layout.tail_begin + tail_loss], fp32[layout.tail_begin + tail_loss], 2e-2);
        EXPECT_LT(difference(bf16, fp32), 0.1f);
        EXPECT_GT(difference(bf16, fp32), 1e-4f);
    }
}

/// The weights are rounded outside of autograd's sight, and their gradients come as bfloat16.
TEST_F(ReplicaOnDevice, Bf16HasTheBitsOfWeightsThatAutogradRounds) {
    std::vector<float> gradient(layout.num_floats);
    Replica(small.network, small.tensors, {.stream = &stream, .precision = Precision::bf16})
        .train(batch, image_shape, {gradient, 1.0f, GradientWrite::overwrite});

    model::ResNetTensors tensors;
    for (model::FlatTensor const& place : layout.parameters)
        tensors.parameters.push_back(
            at::from_blob(small.tensors.parameters.data() + place.offset, place.shape)
                .set_requires_grad(true));
    for (auto const& [statistics, places] :
         {std::pair(&tensors.running_means, &layout.running_means),
          std::pair(&tensors.running_variances, &layout.running_variances)})
        for (model::FlatTensor const& place : *places) statistics->push_back(at::zeros(place.shape));
    at::Tensor const images_NCHW =
        at::from_blob(const_cast<float*>(batch.images_NCHW.data()), {8, 3, 32, 32}).to(at::kBFloat16);
    at::Tensor const labels_N =
        at::from_blob(const_cast<std::int64_t*>(batch.labels_N.data()), {8}, at::kLong);
    at::cross_entropy_loss(model::resnet_forward(small.network, tensors, images_NCHW,
                                                 model::BatchNormMode::batch_statistics, at::kBFloat16),
                           labels_N)
        .backward();
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
        model::FlatTensor const& place = layout.parameters[i];
        std::span<float const> const expected{tensors.parameters[i].grad().const_data_ptr<float>(),
                                              place.size};
        EXPECT_TRUE(equal_bytes(std::span(gradient).subspan(place.offset, place.size), expected))
            << place.name;
    }
}

/// In each order and type: what the device computes of the pixels is what it would be given of them.
TEST_F(ReplicaOnDevice, ComputesItsInputAsTheLoaderDoes) {
    data::TrainAndTest const sets = data::synthetic_datasets(20);
    data::LoaderPlan const plan{
        .batch_size = 8, .end_step = 1, .augmentation = data::Augmentation::crop_flip};
    data::DeviceImages images(*sets.train, data::cifar10_normalization(), plan.device_plan(), -1);
    data::BatchLoader of_device(*sets.train, data::cifar10_normalization(), plan, &images);
    data::BatchLoader of_host(*sets.train, data::cifar10_normalization(), plan);
    ReplicaBatch const& pixels = of_device.next().replicas.front();
    ReplicaBatch const& values = of_host.next().replicas.front();
    for (Layout const order : {Layout::nchw, Layout::nhwc})
        for (Precision const precision : {Precision::fp32, Precision::bf16}) {
            ComputeDevice const device{.stream = &stream, .precision = precision, .layout = order};
            std::vector<std::vector<float>> gradients;
            for (ReplicaBatch const* const given : {&pixels, &values}) {
                gradients.emplace_back(small.network.layout.num_floats);
                Replica replica(small.network, small.tensors, device);
                replica.train(*given, image_shape, {gradients.back(), 1.0f, GradientWrite::overwrite});
                EXPECT_EQ(replica.evaluate(*given, image_shape).count, 8);
            }
            EXPECT_TRUE(equal_bytes(gradients[0], gradients[1]));
        }
}

TEST_P(ReplicaTest, FillsEveryPartOfTheBuffer) {
    std::vector<float> const buffer = trained(random_batch(4, 1), 1.0f);
    for (auto const* part : {&layout().parameters, &layout().running_variances})
        for (model::FlatTensor const& tensor : *part) {
            std::span<float const> const values = std::span(buffer).subspan(tensor.offset, tensor.size);
            EXPECT_TRUE(std::ranges::any_of(values, [](float value) { return value != 0.0f; }))
                << tensor.name;
        }
    EXPECT_EQ(tail(buffer, tail_count), 4.0f);
    EXPECT_EQ(tail(buffer, tail_not_finite), 0.0f);
    EXPECT_EQ(tail(buffer, tail_stop), 0.0f);
}

TEST_P(ReplicaTest, GradientsLieWhereTheLayoutSays) {
    // Without fc.weight all samples have the same logits: d loss / d bias_k is the softmax of the bias less the share of class k.
    make_logits_the_bias();
    std::ranges::fill(small_.parameter("fc.bias"), 0.0f);
    ReplicaBatch batch = random_batch(4, 0);
    batch.labels_N = {0, 0, 3, 9};
    std::vector<float> const buffer = trained(batch, 0.5f);
    model::FlatTensor const& bias = layout().parameters.back();
    ASSERT_EQ(bias.name, "fc.bias");
    for (std::size_t k = 0; k < 10; ++k) {
        float const share = k == 0 ? 0.5f : k == 3 || k == 9 ? 0.25f : 0.0f;
        EXPECT_NEAR(buffer[bias.offset + k], 0.5f * (0.1f - share), 1e-6f) << k;
    }
    EXPECT_NEAR(tail(buffer, tail_loss), 0.5 * std::log(10.0), 1e-6);
    // fc.weight is 0, so nothing flows back beyond it.
    model::FlatTensor const& stem = layout().parameters.front();
    for (std::size_t i = 0; i < stem.size; ++i) EXPECT_EQ(buffer[stem.offset + i], 0.0f);
}

TEST_P(ReplicaTest, CountsWhatItGotRight) {
    make_logits_the_bias();
    std::ranges::fill(small_.parameter("fc.bias"), 0.0f);
    small_.parameter("fc.bias")[7] = 1.0f;
    ReplicaBatch batch = random_batch(5, 0);
    batch.labels_N = {7, 1, 7, 7, 0};
    EXPECT_EQ(tail(trained(batch, 1.0f), tail_correct), 3.0f);
}

TEST_P(ReplicaTest, TheWeightScalesGradientStatisticsAndLossButNoCounts) {
    ReplicaBatch const batch = random_batch(3, 1);
    std::vector<float> const whole = trained(batch, 1.0f);
    std::vector<float> quarter = trained(batch, 0.25f);
    for (std::size_t i = 0; i <= layout().tail_begin; ++i) quarter[i] *= 4;  // exact: a power of two
    static_assert(tail_loss == 0);
    EXPECT_TRUE(equal_bytes(quarter, whole));
}

TEST_P(ReplicaTest, IsAFunctionOfItsBatch) {
    Replica replica(small_.network, small_.tensors, device());
    std::vector<float> const first = trained(random_batch(4, 1), 0.3f, &replica);
    for (std::uint32_t seed = 2; seed < 5; ++seed) trained(random_batch(seed, seed), 0.3f, &replica);
    EXPECT_TRUE(equal_bytes(trained(random_batch(4, 1), 0.3f, &replica), first));
    EXPECT_TRUE(equal_bytes(trained(random_batch(4, 1), 0.3f), first));
    EXPECT_FALSE(equal_bytes(trained(random_batch(4, 2), 0.3f), first));
}

/// Often enough that a device has recorded every size and replays it.
TEST_P(ReplicaTest, IsAFunctionOfItsBatchAndBufferHoweverOftenItRan) {
    Replica replica(small_.network, small_.tensors, device());
    std::vector<float> buffer(layout().num_floats);
    std::vector<float> expected(layout().num_floats);
    for (std::uint32_t step = 0; step < 12; ++step) {
        ReplicaBatch const batch = random_batch(step % 2 == 1 ? 2 : 3, step);
        float const weight = 0.1f * static_cast<float>(1 + step % 3);
        GradientWrite const write = step % 4 < 2 ? GradientWrite::overwrite : GradientWrite::add;
        // Another buffer and changed parameters: neither is a part of what was recorded.
        if (step % 3 == 0) buffer = std::vector<float>(buffer);
        small_.parameter("fc.bias")[0] += 0.5f;
        if (step == 9) {
            replica.train({}, image_shape, {buffer, 0.0f, GradientWrite::add});
            ASSERT_TRUE(equal_bytes(buffer, expected)) << "an empty batch";
        }
        replica.train(batch, image_shape, {buffer, weight, write});
        Replica(small_.network, small_.tensors, {.stream = device().stream, .layout = device().layout})
            .train(batch, image_shape, {expected, weight, write});
        ASSERT_TRUE(equal_bytes(buffer, expected)) << "step " << step;
    }
}

TEST_P(ReplicaTest, ChangesNeitherParametersNorRunningStatistics) {
    std::vector<float> const before = small_.memory;
    trained(random_batch(4, 1), 1.0f);
    EXPECT_TRUE(equal_bytes(small_.memory, before));
}

TEST_P(ReplicaTest, AnEmptyBatchIsZeroEverywhere) {
    Replica replica(small_.network, small_.tensors, device());
    std::vector<float> buffer = test::random_floats(layout().num_floats, 1);
    buffer[3] = std::numeric_limits<float>::quiet_NaN();
    replica.train({}, image_shape, {buffer, 0.0f, GradientWrite::overwrite});
    EXPECT_TRUE(equal_bytes(buffer, std::vector<float>(layout().num_floats)));  // +0: a byte for byte zero
}

TEST_P(ReplicaTest, AnEmptyBatchAddsPlusZero) {
    Replica replica(small_.network, small_.tensors, device());
    std::vector<float> buffer = test::random_floats(layout().num_floats, 1);
    for (std::size_t i = 0; i < buffer.size(); i += 5) buffer[i] = -0.0f;
    std::vector<float> expected = buffer;
    for (std::size_t i = 0; i < buffer.size(); i += 5) expected[i] = 0.0f;
    replica.train({}, image_shape, {buffer, 0.0f, GradientWrite::add});
    EXPECT_TRUE(equal_bytes(buffer, expected));
}

TEST_P(ReplicaTest, AddingHasTheBitsOfALeafWrittenFirstAndAddedLater) {
    ReplicaBatch const left = random_batch(3, 1);
    ReplicaBatch const right = random_batch(2, 2);
    std::vector<float> expected = trained(left, 0.6f);
    std::vector<float> const leaf = trained(right, 0.4f);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += leaf[i];

    std::vector<float> buffer(layout().num_floats);
    Replica replica(small_.network, small_.tensors, device());
    replica.train(left, image_shape, {buffer, 0.6f, GradientWrite::overwrite});
    replica.train(right, image_shape, {buffer, 0.4f, GradientWrite::add});
    EXPECT_TRUE(equal_bytes(buffer, expected));
    EXPECT_EQ(tail(buffer, tail_count), 5.0f);
}

TEST_P(ReplicaTest, SaysThatItIsNotFinite) {
    for (float const bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        ReplicaBatch batch = random_batch(3, 1);
        batch.images_NCHW[2000] = bad;
        EXPECT_EQ(tail(trained(batch, 1.0f), tail_not_finite), 1.0f);
    }
    small_.parameter("layer3.0.conv1.weight")[0] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(tail(trained(random_batch(3, 1), 1.0f), tail_not_finite), 1.0f);
}

TEST_P(ReplicaTest, NothingOfANaNIsLeftInTheNextStep) {
    Replica replica(small_.network, small_.tensors, device());
    ReplicaBatch bad = random_batch(3, 1);
    bad.images_NCHW[2000] = std::numeric_limits<float>::quiet_NaN();
    trained(bad, 1.0f, &replica);
    ReplicaBatch const good = random_batch(3, 2);
    std::vector<float> const after = trained(good, 1.0f, &replica);
    EXPECT_EQ(tail(after, tail_not_finite), 0.0f);
    EXPECT_TRUE(equal_bytes(after, trained(good, 1.0f)));
}

TEST_P(ReplicaTest, EvaluationUsesTheRunningStatisticsAndCountsEachSample) {
    Replica replica(small_.network, small_.tensors, device());
    ReplicaBatch const batch = random_batch(5, 1);
    std::vector<float> const before = small_.memory;
    EvaluationSums const sums = replica.evaluate(batch, image_shape);
    EXPECT_TRUE(equal_bytes(small_.memory, before));
    EXPECT_EQ(sums.count, 5);

    // Each sample alone gives the same loss: there are no batch statistics in it.
    EvaluationSums alone;
    for (std::size_t n = 0; n < 5; ++n) {
        ReplicaBatch one;
        auto const values = static_cast<std::ptrdiff_t>(image_shape.num_values());
        auto const begin = batch.images_NCHW.begin() + static_cast<std::ptrdiff_t>(n) * values;
        one.samples = {batch.samples[n]};
        one.labels_N = {batch.labels_N[n]};
        one.images_NCHW.assign(begin, begin + values);
        EvaluationSums const of_one = replica.evaluate(one, image_shape);
        alone.loss += of_one.loss;
        alone.correct += of_one.correct;
        alone.count += of_one.count;
    }
    EXPECT_NEAR(alone.loss, sums.loss, 1e-5 * sums.loss);
    EXPECT_EQ(alone.correct, sums.correct);
    EXPECT_EQ(alone.count, 5);

    std::ranges::fill(small_.tensors.statistics, 2.0f);
    EXPECT_NE(replica.evaluate(batch, image_shape).loss, sums.loss);
}

TEST_P(ReplicaTest, LabelSmoothingSpreadsAShareOverAllClasses) {
    make_logits_the_bias();
    std::span<float> const bias = small_.parameter("fc.bias");
    std::ranges::fill(bias, 0.0f);
    bias[3] = 1.0f;
    ReplicaBatch batch = random_batch(2, 0);
    batch.labels_N = {3, 3};
    constexpr double smoothing = 0.2;
    Replica replica(small_.network, small_.tensors, device(), smoothing);
    std::vector<float> const buffer = trained(batch, 1.0f, &replica);
    double const sum = 9 + std::exp(1.0);
    // Cross entropy with the label's share 1 - 0.2 + 0.2 / 10, the others' 0.2 / 10.
    EXPECT_NEAR(tail(buffer, tail_loss), std::log(sum) - (0.8 + 0.02), 1e-6);
    std::size_t const gradient = layout().parameters.back().offset;
    ASSERT_EQ(layout().parameters.back().name, "fc.bias");
    EXPECT_NEAR(buffer[gradient + 3], std::exp(1.0) / sum - 0.82, 1e-6);
    EXPECT_NEAR(buffer[gradient + 4], 1 / sum - 0.02, 1e-6);
    EXPECT_NEAR(replica.evaluate(batch, image_shape).loss, 2 * (std::log(sum) - 1), 1e-5)
        << "evaluated without";
}

TEST_P(ReplicaTest, EvaluatesTheAveragesWhereTheyAreKept) {
    test::SmallNetwork averaging(5, 18, 4, Averages::kept);
    std::ranges::copy(small_.tensors.parameters, averaging.tensors.average_parameters.begin());
    std::ranges::fill(averaging.tensors.statistics, 2.0f);
    ReplicaBatch const batch = random_batch(5, 1);
    Replica replica(averaging.network, averaging.tensors, device());
    EvaluationSums const expected =
        Replica(small_.network, small_.tensors, device()).evaluate(batch, image_shape);
    EXPECT_EQ(replica.evaluate(batch, image_shape).loss, expected.loss);

    std::vector<float> const before = averaging.memory;
    trained(batch, 1.0f, &replica);
    EXPECT_TRUE(equal_bytes(averaging.memory, before));
    test::SmallNetwork live(5);
    Replica of_live(live.network, live.tensors, device());
    EXPECT_TRUE(equal_bytes(trained(batch, 1.0f, &replica), trained(batch, 1.0f, &of_live)))
        << "it trains the others";
}

TEST_P(ReplicaTest, EvaluationSumsTheLosses) {
    make_logits_the_bias();
    std::ranges::fill(small_.parameter("fc.bias"), 0.0f);
    ReplicaBatch batch = random_batch(4, 0);
    batch.labels_N = {0, 0, 5, 0};
    EvaluationSums const sums =
        Replica(small_.network, small_.tensors, device()).evaluate(batch, image_shape);
    EXPECT_NEAR(sums.loss, 4 * std::log(10.0), 1e-5);
    EXPECT_EQ(sums.correct, 3);  // the first of equal logits wins
}

}  // namespace
}  // namespace holdfast::train
