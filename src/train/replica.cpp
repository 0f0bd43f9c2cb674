// SPDX-License-Identifier: Apache-2.0
#include "train/replica.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "model/resnet_forward.hpp"
#include "train/gradient_copy.hpp"

namespace holdfast::train {
namespace {

at::Tensor view(std::span<float> buffer, model::FlatTensor const& tensor, std::size_t buffer_begin) {
    return at::from_blob(buffer.data() + (tensor.offset - buffer_begin), tensor.shape, at::kFloat);
}

std::int64_t count_correct(at::Tensor const& logits_NK, at::Tensor const& labels_N) {
    return logits_NK.argmax(1).eq(labels_N).sum().item<std::int64_t>();
}

struct BatchTensors {
    at::Tensor images_NCHW;
    at::Tensor labels_N;
};

/// Views of the batch's memory; torch never writes into inputs that need no gradient.
BatchTensors tensors_of(data::ReplicaBatch const& batch, data::ImageShape shape) {
    std::int64_t const size = static_cast<std::int64_t>(batch.samples.size());
    return {at::from_blob(const_cast<float*>(batch.images_NCHW.data()),
                          {size, shape.channels, shape.height, shape.width}, at::kFloat),
            at::from_blob(const_cast<std::int64_t*>(batch.labels_N.data()), {size}, at::kLong)};
}

}  // namespace

struct Replica::State {
    State(model::ResNet const& the_network, StateTensors const& the_tensors)
        : network(the_network), scratch(the_network.layout.num_statistics_floats()) {
        model::FlatLayout const& layout = network.layout;
        for (model::FlatTensor const& tensor : layout.parameters)
            training.parameters.push_back(view(the_tensors.parameters, tensor, 0).set_requires_grad(true));
        evaluation.parameters = training.parameters;
        for (model::FlatTensor const& tensor : layout.running_means) {
            training.running_means.push_back(view(scratch, tensor, layout.means_begin));
            evaluation.running_means.push_back(view(the_tensors.statistics, tensor, layout.means_begin));
        }
        for (model::FlatTensor const& tensor : layout.running_variances) {
            training.running_variances.push_back(view(scratch, tensor, layout.means_begin));
            evaluation.running_variances.push_back(view(the_tensors.statistics, tensor, layout.means_begin));
        }
        for (std::size_t i = 0; i < layout.parameters.size(); ++i) catch_gradient(i);
    }

    /// Copies each parameter's gradient into the flat buffer while it is hot in the cache, then drops it: autograd then hands
    /// over the next one without a copy or an addition of its own.
    void catch_gradient(std::size_t index) {
        auto accumulator = torch::autograd::impl::grad_accumulator(training.parameters[index]);
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [this, index](std::vector<at::Tensor> const& outputs, std::vector<at::Tensor> const&) {
                at::Tensor& gradient = training.parameters[index].mutable_grad();
                at::Tensor const contiguous = gradient.contiguous();
                write_leaf({contiguous.const_data_ptr<float>(), static_cast<std::size_t>(contiguous.numel())},
                           network.layout.parameters[index].offset);
                gradient.reset();
                return outputs;
            }));
        accumulators.push_back(std::move(accumulator));
    }

    void write_leaf(std::span<float const> values, std::size_t offset) {
        std::span<float> const target = buffer.subspan(offset, values.size());
        bool const finite = write == GradientWrite::add ? add_scaled(target, values, weight)
                                                        : copy_scaled(target, values, weight);
        all_finite = all_finite && finite;
    }

    void write_tail(float loss, std::int64_t correct, std::int64_t count) {
        std::array<float, model::FlatLayout::tail_size> values{};
        values[tail_loss] = weight * loss;
        values[tail_correct] = static_cast<float>(correct);
        values[tail_count] = static_cast<float>(count);
        values[tail_not_finite] = all_finite && std::isfinite(loss) ? 0.0f : 1.0f;
        std::span<float> const tail = buffer.subspan(network.layout.tail_begin, values.size());
        for (std::size_t i = 0; i < values.size(); ++i)
            tail[i] = write == GradientWrite::add ? tail[i] + values[i] : values[i];
    }

    model::ResNet const& network;
    std::vector<float> scratch;  ///< batch means and variances of the last forward pass
    model::ResNetTensors training;
    model::ResNetTensors evaluation;
    std::vector<decltype(torch::autograd::impl::grad_accumulator(at::Tensor()))>
        accumulators;  ///< kept alive for their hooks

    // Of the batch being trained:
    std::span<float> buffer;
    float weight = 1;
    GradientWrite write = GradientWrite::overwrite;
    bool all_finite = true;
};

Replica::Replica(model::ResNet const& network, StateTensors const& tensors)
    : state_(std::make_unique<State>(network, tensors)) {}
Replica::~Replica() = default;

void Replica::train(data::ReplicaBatch const& batch, data::ImageShape shape, float weight,
                    std::span<float> buffer, GradientWrite write) {
    if (batch.samples.empty()) {
        if (write == GradientWrite::overwrite)
            std::fill(buffer.begin(), buffer.end(), 0.0f);
        else
            for (float& value : buffer) value += 0.0f;  // -0 becomes +0, as it would beside a leaf of zeros
        return;
    }
    State& state = *state_;
    state.buffer = buffer;
    state.weight = weight;
    state.write = write;
    state.all_finite = true;
    // BatchNorm computes (1 - 1) * old + 1 * batch: an old NaN or infinity would survive the factor 0.
    std::fill(state.scratch.begin(), state.scratch.end(), 0.0f);

    auto const [images_NCHW, labels_N] = tensors_of(batch, shape);
    at::Tensor const logits_NK = model::resnet_forward(state.network, state.training, images_NCHW,
                                                       model::BatchNormMode::batch_statistics);
    at::Tensor const loss = at::cross_entropy_loss(logits_NK, labels_N);
    loss.backward();
    state.write_leaf(state.scratch, state.network.layout.means_begin);
    state.write_tail(loss.item<float>(), count_correct(logits_NK.detach(), labels_N), labels_N.size(0));
}

EvaluationSums Replica::evaluate(data::ReplicaBatch const& batch, data::ImageShape shape) {
    at::NoGradGuard const no_gradients;
    auto const [images_NCHW, labels_N] = tensors_of(batch, shape);
    at::Tensor const logits_NK = model::resnet_forward(state_->network, state_->evaluation, images_NCHW,
                                                       model::BatchNormMode::running_statistics);
    at::Tensor const losses_N = at::cross_entropy_loss(logits_NK, labels_N, {}, at::Reduction::None);
    EvaluationSums sums;
    sums.count = labels_N.size(0);
    for (std::int64_t i = 0; i < sums.count; ++i)
        sums.loss += static_cast<double>(losses_N.const_data_ptr<float>()[i]);
    sums.correct = count_correct(logits_NK, labels_N);
    return sums;
}

}  // namespace holdfast::train
