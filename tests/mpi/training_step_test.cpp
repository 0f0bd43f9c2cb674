// SPDX-License-Identifier: Apache-2.0
// A step on several ranks, seen by each of them. (That its bits are those of one rank: training_bits_test.cpp.)
#include "train/training_step.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include "cuda/limited_host_memory.hpp"
#include "support/expect_error.hpp"
#include "support/launch_table_of.hpp"
#include "support/small_training.hpp"
#include "train/training_engine.hpp"

namespace holdfast::train {
namespace {

constexpr std::int64_t samples_of_a_replica = 2;

/// One replica per rank.
TrainingEngine collective_make_engine(parallel::Communicator const& world, int width, ComputeDevice device) {
    Settings settings;
    settings.replicas = world.size();
    settings.threads = 1;
    std::vector<int> const hosts(static_cast<std::size_t>(world.size()), 0);
    return TrainingEngine(world, settings, {18, width, 10, 3}, test::launch_table_of(hosts, 1, world.size()),
                          device);
}

StepResult collective_step(parallel::Communicator const& world, int spoilt_replica, float value) {
    TrainingEngine engine = collective_make_engine(world, 4, {});
    engine.initialize(world, 1);
    data::StepBatch batch;
    batch.global_samples = samples_of_a_replica * world.size();
    for (int replica = engine.replicas().begin; replica < engine.replicas().end; ++replica) {
        batch.replicas.push_back(
            test::random_batch(samples_of_a_replica, static_cast<std::uint32_t>(replica)));
        if (replica == spoilt_replica) batch.replicas.back().images_NCHW[777] = value;
    }
    StepResult const result = engine.training_step().run(batch, test::image_shape, {.lr = 0.05f}, false);
    world.barrier();  // the host's memory is read by all before it goes
    return result;
}

TEST(TrainingStep, WhatIsNotFiniteOnOneRankIsSeenByAll) {
    parallel::Communicator const world = parallel::Communicator::collective_world();
    for (float const value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
        for (int replica = 0; replica < world.size(); ++replica)
            EXPECT_FALSE(collective_step(world, replica, value).is_finite)
                << value << " in an image of replica " << replica << ", seen by rank " << world.rank();
    EXPECT_TRUE(collective_step(world, 0, 1.0f).is_finite);
}

/// Steps on devices of that layout; the state that then lies in host memory, and the losses.
std::vector<float> collective_train(parallel::Communicator const& world, Layout layout, int num_steps) {
    cuda::Stream const stream;
    TrainingEngine engine = collective_make_engine(world, 4, {.stream = &stream, .layout = layout});
    engine.initialize(world, 1);
    world.barrier();
    if (world.rank() == 0)
        for (std::span<float> const part : {engine.tensors().parameters, engine.tensors().momentum})
            std::ranges::fill(part, -7.0f);  // to be overwritten
    std::vector<float> result;
    data::StepBatch batch;
    batch.global_samples = samples_of_a_replica * world.size();
    batch.replicas.push_back(
        test::random_batch(samples_of_a_replica, static_cast<std::uint32_t>(world.rank())));
    for (int step = 0; step < num_steps; ++step)
        result.push_back(engine.training_step().run(batch, test::image_shape, {.lr = 0.05f}, false).loss);
    world.barrier();
    if (world.rank() == 0) {
        engine.training_step().fetch_state();
        for (std::span<float> const part :
             {engine.tensors().parameters, engine.tensors().momentum, engine.tensors().statistics})
            result.insert(result.end(), part.begin(), part.end());
    }
    world.barrier();
    return result;
}

TEST(TrainingStep, ChannelsLastOnDevicesIsNotSeenFromOutside) {
    parallel::Communicator const world = parallel::Communicator::collective_world();
    EXPECT_EQ(collective_train(world, Layout::nhwc, 0), collective_train(world, Layout::nchw, 0));
    std::vector<float> const nhwc = collective_train(world, Layout::nhwc, 1);
    std::vector<float> const nchw = collective_train(world, Layout::nchw, 1);
    ASSERT_EQ(nhwc.size(), nchw.size());
    for (std::size_t i = 0; i < nhwc.size(); ++i) ASSERT_NEAR(nhwc[i], nchw[i], 1e-3) << "value " << i;
    if (world.rank() == 0) {  // the others have the losses only
        EXPECT_NE(nhwc, nchw) << "nothing was done otherwise";
    }
}

enum class Ahead { none, step, trouble_on_last_rank };

/// A stop, for which a step was computed ahead in vain or not, and another step; the state then. In the step ahead the last rank has
/// no samples, or not even the batch, so it exchanges nothing of it before the others do.
std::string collective_go_on_after_stop(parallel::Communicator const& world, Ahead looked_at) {
    cuda::Stream const stream;
    TrainingEngine engine = collective_make_engine(world, 52, {.stream = &stream});
    EXPECT_EQ(engine.exchange().early_parts().empty(), world.size() == 1);
    engine.initialize(world, 1);
    TrainingStep& step = engine.training_step();
    auto const batch_of = [&](std::int64_t number, int num_with_samples) {
        data::StepBatch batch;
        batch.step = number;
        batch.global_samples = num_with_samples;
        batch.replicas.emplace_back();
        if (world.rank() < num_with_samples)
            batch.replicas[0] = test::random_batch(1, static_cast<std::uint32_t>(world.rank() + number));
        return batch;
    };
    data::StepBatch const ahead = batch_of(1, std::max(1, world.size() - 1));
    auto const look_ahead = [&] {
        if (looked_at == Ahead::trouble_on_last_rank && world.rank() == world.size() - 1)
            fail(ExitCode::do_not_requeue, "damaged");
        return looked_at == Ahead::none ? nullptr : &ahead;
    };
    StepResult const stopped =
        step.run(batch_of(0, world.size()), test::image_shape, {.lr = 0.05f}, true, look_ahead);
    EXPECT_TRUE(stopped.stop_requested);
    EXPECT_FALSE(step.is_ahead());
    std::string const before = step.state_digests();
    step.run(batch_of(1, world.size()), test::image_shape, {.lr = 0.05f}, false);
    std::string after = step.state_digests();
    EXPECT_NE(after, before);
    world.barrier();
    return after;
}

TEST(TrainingStep, AStopDropsWhatWasComputedAhead) {
    parallel::Communicator const world = parallel::Communicator::collective_world();
    std::string const undisturbed = collective_go_on_after_stop(world, Ahead::none);
    EXPECT_EQ(collective_go_on_after_stop(world, Ahead::step), undisturbed);
    EXPECT_EQ(collective_go_on_after_stop(world, Ahead::trouble_on_last_rank), undisturbed);
}

TEST(TrainingStep, TroubleWithTheNextBatchEndsTheNextStep) {
    parallel::Communicator const world = parallel::Communicator::collective_world();
    cuda::Stream const stream;
    TrainingEngine engine = collective_make_engine(world, 4, {.stream = &stream});
    engine.initialize(world, 1);
    data::StepBatch batch;
    batch.global_samples = world.size();
    batch.replicas.push_back(test::random_batch(1, static_cast<std::uint32_t>(world.rank())));
    auto const run = [&] {
        return engine.training_step().run(
            batch, test::image_shape, {.lr = 0.05f}, false,
            []() -> data::StepBatch const* { fail(ExitCode::do_not_requeue, "damaged"); });
    };
    EXPECT_EQ(run().samples, world.size());
    test::expect_error([&] { run(); }, {"damaged"});
    world.barrier();
}

TEST(TrainingStep, DeviceMemoryThatIsFullOnOneRankEndsAll) {
    parallel::Communicator const world = parallel::Communicator::collective_world();
    std::optional<cuda::LimitedHostMemory> limit;
    if (world.rank() == world.size() - 1) limit.emplace(1'000'000);
    cuda::Stream const stream;
    test::expect_error([&] { collective_make_engine(world, 16, {.stream = &stream}); },
                       {"of its 0.001 GB are free", "--batch-size"});
}

}  // namespace
}  // namespace holdfast::train
