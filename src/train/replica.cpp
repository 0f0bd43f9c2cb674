// SPDX-License-Identifier: Apache-2.0
#include "train/replica.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "core/error.hpp"
#include "model/resnet_forward.hpp"

namespace holdfast::train {
namespace {

at::Device torch_device(ComputeDevice device) {
    return device.gpu < 0 ? at::Device(at::kCPU)
                          : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device.gpu));
}

at::Tensor view(std::span<float> buffer, model::FlatTensor const& tensor, std::size_t buffer_begin,
                ComputeDevice device) {
    return at::from_blob(buffer.data() + (tensor.offset - buffer_begin), tensor.shape,
                         at::TensorOptions(at::kFloat).device(torch_device(device)));
}

/// While it lives, LibTorch queues this thread's work on the GPU in our stream.
class StreamScope {
  public:
    explicit StreamScope(ComputeDevice device) {
        // LibTorch takes the number of a stream it did not make for the stream's address.
        if (device.gpu >= 0)
            guard_.emplace(c10::Stream(c10::Stream::UNSAFE, torch_device(device),
                                       reinterpret_cast<c10::StreamId>(device.stream->get())));
    }

  private:
    std::optional<c10::StreamGuard> guard_;
};

at::Tensor count_correct(at::Tensor const& logits_NK, at::Tensor const& labels_N) {
    return logits_NK.argmax(1).eq(labels_N).sum();
}

struct BatchTensors {
    at::Tensor images_NCHW;
    at::Tensor labels_N;
};

/// On a GPU copies, otherwise views of the batch's memory; torch never writes into inputs that need no gradient.
BatchTensors tensors_of(data::ReplicaBatch const& batch, data::ImageShape shape, ComputeDevice device) {
    std::int64_t const size = static_cast<std::int64_t>(batch.samples.size());
    at::Device const there = torch_device(device);
    return {at::from_blob(const_cast<float*>(batch.images_NCHW.data()),
                          {size, shape.channels, shape.height, shape.width}, at::kFloat)
                .to(there),
            at::from_blob(const_cast<std::int64_t*>(batch.labels_N.data()), {size}, at::kLong).to(there)};
}

/// Runs `action`; on a GPU whose memory does not suffice, says what to lower.
template <typename Action>
auto with_memory_advice(std::size_t batch_size, Action action) {
    try {
        return action();
    } catch (c10::OutOfMemoryError const& error) {
        fail(ExitCode::do_not_requeue,
             "a batch of {} samples does not fit into the GPU's memory ({}); lower --batch-size (with more "
             "--replicas the global batch stays), --eval-batch-size or --width, or use more GPUs",
             batch_size, error.what_without_backtrace());
    }
}

}  // namespace

struct Replica::State {
    State(model::ResNet const& the_network, StateTensors const& the_tensors, ComputeDevice the_device,
          double the_label_smoothing)
        : network(the_network), device(the_device), label_smoothing(the_label_smoothing), leaf(the_device) {
        StreamScope const scope(device);
        model::FlatLayout const& layout = network.layout;
        std::size_t const num_statistics = layout.num_statistics_floats();
        if (device.has_device_memory())
            device_scratch = cuda::DeviceFloats(num_statistics);
        else
            host_scratch.resize(num_statistics);
        scratch = at::from_blob(device.has_device_memory() ? device_scratch.data() : host_scratch.data(),
                                {static_cast<std::int64_t>(num_statistics)},
                                at::TensorOptions(at::kFloat).device(torch_device(device)));
        std::span<float> const batch_statistics{scratch.data_ptr<float>(), num_statistics};
        bool const has_averages = the_tensors.has_averages();
        std::span<float> const evaluated_statistics =
            has_averages ? the_tensors.average_statistics : the_tensors.statistics;
        for (model::FlatTensor const& tensor : layout.parameters) {
            training.parameters.push_back(
                view(the_tensors.parameters, tensor, 0, device).set_requires_grad(true));
            evaluation.parameters.push_back(has_averages
                                                ? view(the_tensors.average_parameters, tensor, 0, device)
                                                : training.parameters.back());
        }
        for (model::FlatTensor const& tensor : layout.running_means) {
            training.running_means.push_back(view(batch_statistics, tensor, layout.means_begin, device));
            evaluation.running_means.push_back(
                view(evaluated_statistics, tensor, layout.means_begin, device));
        }
        for (model::FlatTensor const& tensor : layout.running_variances) {
            training.running_variances.push_back(view(batch_statistics, tensor, layout.means_begin, device));
            evaluation.running_variances.push_back(
                view(evaluated_statistics, tensor, layout.means_begin, device));
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
                leaf.write(gradient.contiguous(), network.layout.parameters[index].offset);
                gradient.reset();
                return outputs;
            }));
        accumulators.push_back(std::move(accumulator));
    }

    model::ResNet const& network;
    ComputeDevice device;
    double label_smoothing;
    GradientLeaf leaf;  ///< of the batch being trained
    std::vector<float> host_scratch;
    cuda::DeviceFloats device_scratch;
    at::Tensor scratch;  ///< one of these: batch means and variances of the last forward pass
    model::ResNetTensors training;
    model::ResNetTensors evaluation;
    std::vector<decltype(torch::autograd::impl::grad_accumulator(at::Tensor()))>
        accumulators;  ///< kept alive for their hooks
};

Replica::Replica(model::ResNet const& network, StateTensors const& tensors, ComputeDevice device,
                 double label_smoothing)
    : state_(std::make_unique<State>(network, tensors, device, label_smoothing)) {}
Replica::~Replica() = default;

void Replica::train(data::ReplicaBatch const& batch, data::ImageShape shape, float weight,
                    std::span<float> buffer, GradientWrite write) {
    State& state = *state_;
    StreamScope const scope(state.device);
    state.leaf.begin(buffer, weight, write);
    if (batch.samples.empty()) {
        state.leaf.write_nothing();
        return;
    }
    with_memory_advice(batch.samples.size(), [&] {
        // BatchNorm computes (1 - 1) * old + 1 * batch: an old NaN or infinity would survive the factor 0.
        state.scratch.zero_();
        auto const [images_NCHW, labels_N] = tensors_of(batch, shape, state.device);
        at::Tensor const logits_NK = model::resnet_forward(state.network, state.training, images_NCHW,
                                                           model::BatchNormMode::batch_statistics);
        constexpr std::int64_t no_label_is_ignored = -100;  // torch's default
        at::Tensor const loss = at::cross_entropy_loss(logits_NK, labels_N, {}, at::Reduction::Mean,
                                                       no_label_is_ignored, state.label_smoothing);
        loss.backward();
        state.leaf.write(state.scratch, state.network.layout.means_begin);
        state.leaf.write_tail(loss.detach(), count_correct(logits_NK.detach(), labels_N), labels_N.size(0),
                              state.network.layout.tail_begin);
    });
}

EvaluationSums Replica::evaluate(data::ReplicaBatch const& batch, data::ImageShape shape) {
    at::NoGradGuard const no_gradients;
    StreamScope const scope(state_->device);
    return with_memory_advice(batch.samples.size(), [&] {
        auto const [images_NCHW, labels_N] = tensors_of(batch, shape, state_->device);
        at::Tensor const logits_NK = model::resnet_forward(state_->network, state_->evaluation, images_NCHW,
                                                           model::BatchNormMode::running_statistics);
        at::Tensor const losses_N =
            at::cross_entropy_loss(logits_NK, labels_N, {}, at::Reduction::None).to(at::kCPU);
        EvaluationSums sums;
        sums.count = labels_N.size(0);
        for (std::int64_t i = 0; i < sums.count; ++i)
            sums.loss += static_cast<double>(losses_N.const_data_ptr<float>()[i]);
        sums.correct = count_correct(logits_NK, labels_N).item<std::int64_t>();
        return sums;
    });
}

}  // namespace holdfast::train
