// SPDX-License-Identifier: Apache-2.0
#include "train/replica.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "core/error.hpp"
#include "model/resnet_forward.hpp"
#include "train/captured_work.hpp"

namespace holdfast::train {
namespace {

at::Device torch_device(ComputeDevice device) {
    return device.gpu < 0 ? at::Device(at::kCPU)
                          : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device.gpu));
}

at::MemoryFormat memory_format(std::size_t num_axes, ComputeDevice device) {
    bool const is_nhwc = device.has_device_memory() && device.layout == Layout::nhwc;
    return is_nhwc && num_axes == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

at::Tensor view_at(void* data, at::ScalarType type, model::FlatTensor const& tensor, ComputeDevice device) {
    at::TensorOptions const options = at::TensorOptions(type).device(torch_device(device));
    if (memory_format(tensor.shape.size(), device) == at::MemoryFormat::ChannelsLast)
        return at::from_blob(data, tensor.shape, c10::get_channels_last_strides_2d(tensor.shape), options);
    return at::from_blob(data, tensor.shape, options);
}

at::Tensor view(std::span<float> buffer, model::FlatTensor const& tensor, std::size_t buffer_begin,
                ComputeDevice device) {
    return view_at(buffer.data() + (tensor.offset - buffer_begin), at::kFloat, tensor, device);
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

at::ScalarType multiplied_type(ComputeDevice device) {
    return device.precision == Precision::bf16 ? at::kBFloat16 : at::kFloat;
}

/// What `multiplied_type` and `memory_format` are for images.
cuda::ImageFormat image_format(ComputeDevice device) {
    return {device.layout == Layout::nhwc ? cuda::ImageOrder::nhwc : cuda::ImageOrder::nchw,
            device.precision == Precision::bf16 ? cuda::ImageType::bfloat16 : cuda::ImageType::float32};
}

struct BatchTensors {
    at::Tensor images_NCHW;
    at::Tensor labels_N;
};

/// Of the batch's memory, in the host. torch never writes into inputs that need no gradient.
BatchTensors views_of(data::ReplicaBatch const& batch, data::ImageShape shape) {
    std::int64_t const size = static_cast<std::int64_t>(batch.samples.size());
    return {at::from_blob(const_cast<float*>(batch.images_NCHW.data()),
                          {size, shape.channels, shape.height, shape.width}, at::kFloat),
            at::from_blob(const_cast<std::int64_t*>(batch.labels_N.data()), {size}, at::kLong)};
}

/// Memory of the device for a batch, in its order and type.
BatchTensors empty_batch(std::int64_t size, data::ImageShape shape, ComputeDevice device) {
    at::TensorOptions const there(torch_device(device));
    return {at::empty({size, shape.channels, shape.height, shape.width}, there.dtype(multiplied_type(device)),
                      memory_format(4, device)),
            at::empty({size}, there.dtype(at::kLong))};
}

void fill(BatchTensors const& there, data::ReplicaBatch const& batch, data::ImageShape shape,
          ComputeDevice device) {
    if (batch.on_device) {
        batch.on_device.write(image_format(device), there.images_NCHW.mutable_data_ptr(),
                              there.labels_N.mutable_data_ptr<std::int64_t>(), *device.stream);
        return;
    }
    BatchTensors const here = views_of(batch, shape);
    there.images_NCHW.copy_(here.images_NCHW);
    there.labels_N.copy_(here.labels_N);
}

BatchTensors on_device(data::ReplicaBatch const& batch, data::ImageShape shape, ComputeDevice device) {
    BatchTensors const there = empty_batch(static_cast<std::int64_t>(batch.samples.size()), shape, device);
    fill(there, batch, shape, device);
    return there;
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
          double the_label_smoothing, std::span<parallel::FloatRange const> early_parts)
        : network(the_network),
          device(the_device),
          label_smoothing(the_label_smoothing),
          parameters(the_tensors.parameters),
          leaf(the_network.layout, the_device, early_parts) {
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
        if (device.has_device_memory() && multiplied_type(device) == at::kBFloat16)
            rounded_weights = cuda::Memory<std::uint16_t, cuda::MemoryKind::device>(layout.decaying_end);
        for (model::FlatTensor const& tensor : layout.parameters) {
            at::Tensor const exact = view(parameters, tensor, 0, device);
            bool const is_rounded = tensor.offset < rounded_weights.size();
            training.parameters.push_back(
                is_rounded ? view_at(rounded_weights.data() + tensor.offset, at::kBFloat16, tensor, device)
                           : exact);
            training.parameters.back().set_requires_grad(true);
            evaluation.parameters.push_back(
                has_averages ? view(the_tensors.average_parameters, tensor, 0, device) : exact);
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
                // Dropped also if writing fails, or the next pass would add to it.
                at::Tensor const gradient = std::exchange(training.parameters[index].mutable_grad(), {});
                model::FlatTensor const& place = network.layout.parameters[index];
                leaf.write(gradient.contiguous(memory_format(place.shape.size(), device)), place.offset);
                return outputs;
            }));
        accumulators.push_back(std::move(accumulator));
    }

    void forward_and_backward(BatchTensors const& batch) {
        leaf.begin_values();
        if (rounded_weights.size() > 0)
            cuda::round_to_bfloat16(rounded_weights.data(), parameters.data(), rounded_weights.size(),
                                    *device.stream);
        // BatchNorm computes (1 - 1) * old + 1 * batch: an old NaN or infinity would survive the factor 0.
        scratch.zero_();
        at::Tensor const logits_NK =
            model::resnet_forward(network, training, batch.images_NCHW,
                                  model::BatchNormMode::batch_statistics, multiplied_type(device));
        constexpr std::int64_t no_label_is_ignored = -100;  // torch's default
        at::Tensor const loss = at::cross_entropy_loss(logits_NK, batch.labels_N, {}, at::Reduction::Mean,
                                                       no_label_is_ignored, label_smoothing);
        loss.backward();
        leaf.write(scratch, network.layout.means_begin);
        leaf.write_tail(loss.detach(), count_correct(logits_NK.detach(), batch.labels_N),
                        batch.labels_N.size(0));
    }

    /// On a device: forward and backward of batches of one size, from and to fixed places. There are few sizes: the full one
    /// and, at the end of an epoch, one or two others.
    struct Pass {
        BatchTensors batch;
        CapturedWork work;
    };
    Pass& pass_of(std::int64_t size, data::ImageShape shape) {
        if (auto const found = passes.find(size); found != passes.end()) return found->second;
        BatchTensors const batch = empty_batch(size, shape, device);
        CapturedWork work(device, [this, batch] { forward_and_backward(batch); });
        return passes.emplace(size, Pass{batch, std::move(work)}).first->second;
    }

    model::ResNet const& network;
    ComputeDevice device;
    double label_smoothing;
    std::span<float> parameters;
    /// With bfloat16, what is multiplied: all weights of convolutions and the linear layer, rounded once a pass by one kernel; LibTorch
    /// would start one for each of them, and one for each of their gradients. Otherwise nothing.
    cuda::Memory<std::uint16_t, cuda::MemoryKind::device> rounded_weights;
    GradientLeaf leaf;  ///< of the batch being trained
    std::vector<float> host_scratch;
    cuda::DeviceFloats device_scratch;
    at::Tensor scratch;  ///< one of these: batch means and variances of the last forward pass
    model::ResNetTensors training;
    model::ResNetTensors evaluation;
    std::vector<decltype(torch::autograd::impl::grad_accumulator(at::Tensor()))>
        accumulators;                     ///< kept alive for their hooks
    std::map<std::int64_t, Pass> passes;  ///< by batch size; last, because they use all of the above
};

Replica::Replica(model::ResNet const& network, StateTensors const& tensors, ComputeDevice device,
                 double label_smoothing, std::span<parallel::FloatRange const> early_parts)
    : state_(std::make_unique<State>(network, tensors, device, label_smoothing, early_parts)) {}
Replica::~Replica() = default;

void Replica::train(data::ReplicaBatch const& batch, data::ImageShape shape, LeafTarget const& target) {
    State& state = *state_;
    StreamScope const scope(state.device);
    state.leaf.begin(target);
    if (batch.samples.empty()) {
        state.leaf.write_nothing();
        return;
    }
    with_memory_advice(batch.samples.size(), [&] {
        if (state.device.has_device_memory()) {
            State::Pass& pass = state.pass_of(static_cast<std::int64_t>(batch.samples.size()), shape);
            fill(pass.batch, batch, shape, state.device);
            pass.work.run();
        } else {
            state.forward_and_backward(views_of(batch, shape));
        }
        state.leaf.end();
    });
}

EvaluationSums Replica::evaluate(data::ReplicaBatch const& batch, data::ImageShape shape) {
    at::NoGradGuard const no_gradients;
    StreamScope const scope(state_->device);
    return with_memory_advice(batch.samples.size(), [&] {
        ComputeDevice const device = state_->device;
        BatchTensors const given =
            device.has_device_memory() ? on_device(batch, shape, device) : views_of(batch, shape);
        auto const& [images_NCHW, labels_N] = given;
        at::Tensor const logits_NK =
            model::resnet_forward(state_->network, state_->evaluation, images_NCHW,
                                  model::BatchNormMode::running_statistics, multiplied_type(device));
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
