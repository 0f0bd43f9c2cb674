// SPDX-License-Identifier: Apache-2.0
#include "train/numeric_fingerprint.hpp"

#include <caffe2/core/common.h>
#include <vector>

#include <ATen/Version.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "core/digest.hpp"
#include "model/resnet.hpp"
#include "model/resnet_initialization.hpp"
#include "train/compute_thread.hpp"
#include "train/replica.hpp"
#include "train/torch_on_gpu.hpp"

namespace holdfast::train {
namespace {

/// Small enough to cost some 20 ms, wide enough for the vector kernels of convolution, BatchNorm and the linear layer.
Digest gradient_digest(ComputeDevice device) {
    model::ResNet const network =
        model::make_resnet({.depth = 18, .width = 16, .num_classes = 10, .in_channels = 3});
    std::vector<float> memory(StateTensors::num_floats(network.layout));
    StateTensors const tensors = StateTensors::in(memory, network.layout);
    model::initialize_parameters(network, 0, tensors.parameters);

    data::ImageShape const shape{3, 32, 32};
    data::ReplicaBatch batch;
    for (std::int64_t sample = 0; sample < 4; ++sample) {
        batch.samples.push_back(sample);
        batch.labels_N.push_back(sample % 10);
        for (std::int64_t i = 0; i < shape.num_values(); ++i)
            batch.images_NCHW.push_back(static_cast<float>((i * 131 + sample * 977) % 255) / 127.0f - 1.0f);
    }
    std::vector<float> gradient(network.layout.num_floats);
    if (device.has_device_memory()) {
        cuda::Stream const& stream = *device.stream;
        cuda::DeviceFloats const state_there(memory.size());
        cuda::DeviceFloats const gradient_there(gradient.size());
        cuda::copy(state_there.data(), memory.data(), std::as_bytes(std::span(memory)).size(), stream);
        Replica replica(network, StateTensors::in({state_there.data(), state_there.size()}, network.layout),
                        device);
        replica.train(batch, shape, {.buffer = {gradient_there.data(), gradient_there.size()}});
        cuda::copy(gradient.data(), gradient_there.data(), std::as_bytes(std::span(gradient)).size(), stream);
        stream.synchronize();
    } else {
        Replica(network, tensors).train(batch, shape, {.buffer = gradient});
    }
    return digest_of(std::as_bytes(std::span<float const>(gradient)));
}

}  // namespace

std::string torch_version() {
    return fmt::format("{}.{}.{}", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH);
}

std::string torch_version_loaded() {
    // Not at::show_config(), which says it too: it asks for LibTorch's part for GPUs, and whoever asks before that is loaded switches
    // it off for good (getCUDAHooks() in ATen/detail/CUDAHooksInterface.cpp).
    auto const& options = caffe2::GetBuildOptions();
    auto const found = options.find("TORCH_VERSION");
    return found == options.end() ? "unknown" : found->second;
}

std::string cpu_capability() { return at::get_cpu_capability(); }

std::string numeric_fingerprint(int threads, ComputeDevice device) {
    prepare_compute_thread(threads);
    nlohmann::ordered_json json;
    json["torch"] = torch_version();
    if (device.gpu >= 0) {
        json["gpu"] = cuda::device_name(device.gpu);
        json["cudnn"] = cudnn_version();
        json["precision"] = precision_names[static_cast<std::size_t>(device.precision)];
    } else {
        json["cpu_capability"] = cpu_capability();
        json["threads"] = threads;
    }
    json["gradient_digest"] = gradient_digest(device).hex();
    return json.dump();
}

}  // namespace holdfast::train
