// SPDX-License-Identifier: Apache-2.0
// Saving from a device while the training goes on, on the host implementation of the device runtime, whose streams are made to
// do everything as late as they may.
#include "train/state_snapshot.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "cuda/deferred_host_streams.hpp"
#include "support/expect_error.hpp"
#include "support/launch_table_of.hpp"
#include "support/random_floats.hpp"
#include "support/small_training.hpp"
#include "support/temporary_folder.hpp"
#include "train/run_directory.hpp"
#include "train/training_engine.hpp"

namespace holdfast::train {
namespace {

using test::equal_bytes;

/// A state on a device, all of whose values a step changes from one number to the next.
struct CountingState {
    CountingState()
        : memory(StateTensors::num_floats(small.network.layout)),
          ones(memory.size()),
          snapshot(small.network.layout, Averages::none, {.stream = &steps}, {memory.data(), memory.size()}) {
        std::fill_n(ones.data(), ones.size(), 1.0f);
    }
    void step() {
        cuda::sum_in_order(memory.data(), {memory.data(), ones.data()}, {{0, 1, -1}}, memory.size(), steps);
    }
    /// The number that all of the tensors' values are.
    float number(StateTensors const& tensors) const {
        model::FlatLayout const& layout = small.network.layout;
        float const first = tensors.parameters.front();
        auto const expect_it = [&](std::span<float const> part, std::vector<model::FlatTensor> const& list,
                                   std::size_t begin) {
            for (model::FlatTensor const& tensor : list)
                for (float const value : part.subspan(tensor.offset - begin, tensor.size))
                    ASSERT_EQ(value, first) << tensor.name;
        };
        expect_it(tensors.parameters, layout.parameters, 0);
        expect_it(tensors.momentum, layout.parameters, 0);
        expect_it(tensors.statistics, layout.running_means, layout.means_begin);
        expect_it(tensors.statistics, layout.running_variances, layout.means_begin);
        return first;
    }

    cuda::DeferredHostStreams deferred;
    test::SmallNetwork small;
    cuda::DeviceFloats memory;
    cuda::DeviceFloats ones;
    cuda::Stream steps;
    StateSnapshot snapshot;
};

TEST(StateSnapshot, WaitsForTheStepBeforeIt) {
    CountingState state;
    state.step();
    state.snapshot.start();
    state.step();
    EXPECT_EQ(state.number(state.snapshot.wait()), 1.0f);
}

TEST(StateSnapshot, IsNotTouchedByTheStepsAfterIt) {
    CountingState state;
    state.step();
    state.snapshot.start();
    state.step();
    state.step();
    state.steps.synchronize();
    EXPECT_EQ(state.number(state.snapshot.wait()), 1.0f);
    state.snapshot.start();
    state.step();
    EXPECT_EQ(state.number(state.snapshot.wait()), 3.0f);
}

struct DeviceRun {
    DeviceRun() : run(folder.path() / "run", 3, {"here"}, 1, phases) {
        state.layout = &on_device.small.network.layout;
        state.tensors = on_device.small.tensors;
        state.fingerprint = "{}";
    }
    /// After that the run saves from the device, without a tensor of `state`.
    void begin() {
        run.save(state);
        run.take_tensors_from(std::make_unique<StateSnapshot>(
            *state.layout, Averages::none, ComputeDevice{.stream = &on_device.steps},
            std::span<float const>(on_device.memory.data(), on_device.memory.size())));
        std::fill(on_device.small.memory.begin(), on_device.small.memory.end(), -1.0f);
    }
    void step() {
        on_device.step();
        ++state.step;
    }

    CountingState on_device;
    test::TemporaryFolder folder;
    PhaseBoard phases;
    RunState state;
    RunDirectory run;
};

TEST(SavingFromADevice, HoldsTheStateOfItsStepWhileTheStepsGoOn) {
    DeviceRun device;
    device.begin();
    for (int saves = 0; saves < 2; ++saves) {
        device.step();
        device.state.history.emplace_back().step = device.state.step;
        auto const history = device.state.history.size();
        std::int64_t const step = device.state.step;
        device.run.start_save(device.state);
        device.step();
        device.state.history.emplace_back();
        device.on_device.steps.synchronize();
        ASSERT_TRUE(device.run.finish_save());

        EXPECT_EQ(device.run.saved_step(), step);
        RunState read;
        test::SmallNetwork memory;
        read.layout = device.state.layout;
        read.tensors = memory.tensors;
        read.load(device.run.read_newest_good()->file);
        EXPECT_EQ(read.step, step);
        EXPECT_EQ(read.history.size(), history);
        EXPECT_EQ(device.on_device.number(read.tensors), static_cast<float>(step));
    }
}

TEST(SavingFromADevice, NeverKeepsWhatIsNotFinite) {
    DeviceRun device;
    device.begin();
    device.on_device.ones.data()[5] = std::numeric_limits<float>::infinity();
    device.step();
    device.run.start_save(device.state);
    test::expect_error([&] { device.run.finish_save(); }, {"step 1", "NaN or infinity", "step 0 is good"},
                       ExitCode::do_not_requeue);
    EXPECT_EQ(device.run.read_newest_good()->step, 0);
}

class SavingFromAnEngine : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(In, SavingFromAnEngine, testing::Values(Layout::nchw, Layout::nhwc));

TEST_P(SavingFromAnEngine, TakesWhatTheTrainingLeft) {
    parallel::Communicator const alone;
    Settings settings;
    settings.replicas = 2;
    settings.threads = 1;
    settings.ema_decay = 0.9;
    auto const make_engine = [&](ComputeDevice device) {
        return std::make_unique<TrainingEngine>(alone, settings, model::ResNetConfig{18, 4, 10, 3},
                                                test::launch_table_of({0}, 1, 2), device);
    };
    EXPECT_EQ(make_engine({})->make_snapshot(), nullptr);

    cuda::Stream const steps;  // LibTorch on the CPU does not wait for it, so it does all at once
    auto const engine = make_engine({.stream = &steps, .layout = GetParam()});
    cuda::DeferredHostStreams const deferred;
    auto const snapshot = engine->make_snapshot();
    engine->initialize(alone, 1);
    data::StepBatch batch;
    for (std::uint32_t replica = 0; replica < 2; ++replica)
        batch.replicas.push_back(test::random_batch(2, replica));
    batch.global_samples = 4;
    optim::SgdRates const rates{.lr = 0.05f, .average_weight = 0.1f};
    auto const step = [&] {
        EXPECT_TRUE(engine->training_step().run(batch, test::image_shape, rates, false).is_finite);
    };
    step();
    engine->training_step().fetch_state();
    std::vector<std::vector<float>> expected;
    for (auto const& [name, values] : engine->tensors().parts())
        expected.emplace_back(values.begin(), values.end());
    snapshot->start();
    step();
    auto const found = snapshot->wait().parts();
    engine->training_step().fetch_state();
    auto const changed = engine->tensors().parts();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t part = 0; part < found.size(); ++part) {
        EXPECT_TRUE(equal_bytes(found[part].second, expected[part])) << found[part].first;
        EXPECT_FALSE(equal_bytes(changed[part].second, expected[part])) << "the second step changed nothing";
    }
}

}  // namespace
}  // namespace holdfast::train
