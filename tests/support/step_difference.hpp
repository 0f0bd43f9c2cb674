// SPDX-License-Identifier: Apache-2.0
// How far the steps of two devices are apart. Each step begins on both with the state of one of them: what is compared over many
// steps otherwise is not the arithmetic but its growth. One CPU thread and two, which only round differently, are 0.03 apart in
// the loss after 50 of these steps (`bench --model resnet18 --width 16 --replicas 5 --batch-size 8 --lr 0.02`).
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "data/synthetic_images.hpp"
#include "support/launch_table_of.hpp"
#include "train/step_rates.hpp"
#include "train/training_engine.hpp"

namespace holdfast::test {

/// The largest of all steps.
struct StepDifference {
    double loss = 0;
    double update = 0;  ///< of what a step adds to the parameters, in its own length
    double statistics = 0;
};

/// |a - b| / |b|
inline double distance(std::vector<float> const& a, std::vector<float> const& b) {
    double difference = 0;
    double length = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        length += std::pow(static_cast<double>(b[i]), 2);
    }
    return std::sqrt(difference / length);
}

/// ResNet-18 of width 16, five replicas of eight samples.
inline StepDifference largest_difference(train::ComputeDevice device, train::ComputeDevice reference,
                                         std::string const& recipe, std::int64_t num_steps) {
    constexpr int replicas = 5;
    constexpr std::int64_t batch_size = 8;
    parallel::Communicator const alone;
    train::Settings settings;
    settings.recipe = recipe;
    settings = with_recipe(settings, {"recipe"});
    settings.replicas = replicas;
    settings.batch_size = batch_size;
    settings.threads = 1;
    model::ResNetConfig const network{18, 16, 10, 3};
    parallel::LaunchTable const table = launch_table_of({0}, 1, replicas);
    train::TrainingEngine theirs(alone, settings, network, table, reference);
    train::TrainingEngine ours(alone, settings, network, table, device);
    theirs.initialize(alone, 1);
    data::TrainAndTest const sets = data::synthetic_datasets(replicas * batch_size * num_steps);
    data::LoaderPlan const plan = loader_plan(settings, ours.replicas(), 0, num_steps);
    data::BatchLoader loader(*sets.train, data::cifar10_normalization(), plan);
    auto const values_of = [](std::span<float> values) {
        return std::vector<float>(values.begin(), values.end());
    };
    StepDifference largest;
    for (std::int64_t step = 0; step < num_steps; ++step) {
        theirs.training_step().fetch_state();
        auto const from = theirs.tensors().parts();
        auto const to = ours.tensors().parts();
        for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i].second, to[i].second.begin());
        ours.training_step().load_state();
        std::vector<float> const before = values_of(ours.tensors().parameters);
        auto const run = [&](train::TrainingEngine& engine, data::StepBatch const& batch, auto& update) {
            train::StepResult const result = engine.training_step().run(
                batch, sets.train->shape(), train::sgd_rates(settings, 0.02, step), false);
            engine.training_step().fetch_state();
            update = values_of(engine.tensors().parameters);
            for (std::size_t i = 0; i < update.size(); ++i) update[i] -= before[i];
            return static_cast<double>(result.loss);
        };
        data::StepBatch const& batch = loader.next();
        std::vector<float> our_update, their_update;
        double const our_loss = run(ours, batch, our_update);
        double const their_loss = run(theirs, batch, their_update);
        largest.loss = std::max(largest.loss, std::abs(our_loss - their_loss));
        largest.update = std::max(largest.update, distance(our_update, their_update));
        largest.statistics = std::max(largest.statistics, distance(values_of(ours.tensors().statistics),
                                                                   values_of(theirs.tensors().statistics)));
    }
    return largest;
}

}  // namespace holdfast::test
