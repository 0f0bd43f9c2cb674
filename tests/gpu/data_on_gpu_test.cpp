// SPDX-License-Identifier: Apache-2.0
// What only a GPU can show of its data: that the kernel computes the input of the network with the bytes of the loader on the host,
// whichever way the pixels take, and that a snapshot of the state is that of its step while the training goes on.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "data/synthetic_images.hpp"
#include "support/device_input.hpp"
#include "support/launch_table_of.hpp"
#include "train/torch_on_gpu.hpp"
#include "train/training_engine.hpp"

namespace holdfast::train {
namespace {

class DataOnGpu : public testing::Test {
  protected:
    void SetUp() override {
        if (cuda::visible_device_uuids().empty()) GTEST_SKIP() << "no GPU here";
        cuda::use_device(0);
    }
};

TEST_F(DataOnGpu, AreTheBytesOfTheHost) {
    for (test::InputCase const& one : test::input_cases()) {
        SCOPED_TRACE(testing::Message() << one);
        test::expect_input_of_the_host(one, 0);
        if (HasFailure()) return;
    }
}

/// Parameters, momentum and running statistics, one after the other.
std::vector<float> values_of(StateTensors const& tensors) {
    std::vector<float> values;
    for (std::span<float> const part : {tensors.parameters, tensors.momentum, tensors.statistics})
        values.insert(values.end(), part.begin(), part.end());
    return values;
}

struct Trained {
    std::vector<std::vector<float>> states;  ///< after each step
    std::vector<float> losses;
};

/// How the images get to the GPU.
enum class Images { as_floats, with_their_step, all_there };

/// Six steps of three replicas. A state is fetched while nothing else happens, or arrives while the next step computes.
Trained train_here(Images way, bool beside_the_steps) {
    constexpr int replicas = 3;
    constexpr int steps = 6;
    parallel::Communicator const alone;
    Settings settings;
    settings.replicas = replicas;
    settings.threads = 1;
    cuda::Stream const stream;
    ComputeDevice const device{.stream = &stream, .gpu = 0};
    TrainingEngine engine(alone, settings, {18, 64, 10, 3}, test::launch_table_of({0}, 1, replicas), device);
    engine.initialize(alone, 1);
    data::TrainAndTest const sets = data::synthetic_datasets(100);
    data::LoaderPlan const plan{.num_replicas = replicas,
                                .batch_size = 16,
                                .end_replica = replicas,
                                .end_step = steps,
                                .augmentation = data::Augmentation::crop_flip};
    std::unique_ptr<data::DeviceImages> images;
    if (way != Images::as_floats)
        images = std::make_unique<data::DeviceImages>(
            *sets.train, data::cifar10_normalization(), plan.device_plan(), 0,
            way == Images::all_there ? data::DeviceImages::default_limit_bytes() : 0);
    data::BatchLoader loader(*sets.train, data::cifar10_normalization(), plan, images.get());
    std::unique_ptr<StateSnapshot> const snapshot = engine.make_snapshot();
    Trained result;
    for (int step = 0; step < steps; ++step) {
        if (beside_the_steps && step > 0) snapshot->start();
        StepResult const done =
            engine.training_step().run(loader.next(), sets.train->shape(), {.lr = 0.02f}, false);
        EXPECT_TRUE(done.is_finite);
        result.losses.push_back(done.loss);
        if (beside_the_steps && step > 0) result.states.push_back(values_of(snapshot->wait()));
        if (beside_the_steps && step < steps - 1) continue;
        engine.training_step().fetch_state();
        result.states.push_back(values_of(engine.tensors()));
    }
    return result;
}

TEST_F(DataOnGpu, TrainTheSameWhicheverWayTheyTake) {
    start_torch_on_gpu(0, parallel::Reduction::exact, Precision::fp32);
    Trained const expected = train_here(Images::as_floats, false);
    for (Images const way : {Images::with_their_step, Images::all_there}) {
        Trained const found = train_here(way, false);
        EXPECT_EQ(found.losses, expected.losses);
        EXPECT_EQ(found.states, expected.states);
    }
}

TEST_F(DataOnGpu, SnapshotsAreOfTheirStep) {
    start_torch_on_gpu(0, parallel::Reduction::exact, Precision::fp32);
    Trained const expected = train_here(Images::all_there, false);
    Trained const found = train_here(Images::all_there, true);
    EXPECT_EQ(found.losses, expected.losses);
    EXPECT_EQ(found.states, expected.states);
}

}  // namespace
}  // namespace holdfast::train
