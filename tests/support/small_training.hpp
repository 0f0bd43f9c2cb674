// SPDX-License-Identifier: Apache-2.0
// A narrow ResNet with its state in plain memory, and batches for it: what a replica needs, at a millisecond a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "data/batch_loader.hpp"
#include "model/resnet_initialization.hpp"
#include "train/run_state.hpp"

namespace holdfast::test {

struct SmallNetwork {
    explicit SmallNetwork(std::uint64_t seed = 0, int depth = 18, int width = 4,
                          train::Averages averages = train::Averages::none)
        : network(model::make_resnet({.depth = depth, .width = width, .num_classes = 10, .in_channels = 3})),
          memory(train::StateTensors::num_floats(network.layout, averages)),
          tensors(train::StateTensors::in(memory, network.layout, averages)) {
        model::initialize_parameters(network, seed, tensors.parameters);
        for (model::FlatTensor const& tensor : network.layout.running_variances)
            std::ranges::fill(
                tensors.statistics.subspan(tensor.offset - network.layout.means_begin, tensor.size), 1.0f);
        tensors.restart_averages();
    }
    SmallNetwork(SmallNetwork const&) = delete;
    SmallNetwork& operator=(SmallNetwork const&) = delete;

    std::span<float> parameter(std::string const& name) {
        auto const found = std::ranges::find(network.layout.parameters, name, &model::FlatTensor::name);
        return tensors.parameters.subspan(found->offset, found->size);
    }

    model::ResNet network;
    std::vector<float> memory;
    train::StateTensors tensors;
};

inline data::ImageShape const image_shape{3, 32, 32};

/// Random images; labels count up from `seed`.
inline data::ReplicaBatch random_batch(std::int64_t size, std::uint32_t seed) {
    std::mt19937 engine(seed);
    data::ReplicaBatch batch;
    for (std::int64_t sample = 0; sample < size; ++sample) {
        batch.samples.push_back(sample);
        batch.labels_N.push_back((sample + seed) % 10);
        for (std::int64_t i = 0; i < image_shape.num_values(); ++i)
            batch.images_NCHW.push_back(static_cast<float>(engine() >> 8) / static_cast<float>(1 << 23) -
                                        1.0f);
    }
    return batch;
}

}  // namespace holdfast::test
