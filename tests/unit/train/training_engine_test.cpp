// SPDX-License-Identifier: Apache-2.0
// The engine on one rank, and its training step against the definition. Several ranks: tests/mpi/training_bits_test.cpp.
#include "train/training_engine.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "data/synthetic_images.hpp"
#include "optim/moving_average.hpp"
#include "optim/running_statistics.hpp"
#include "optim/sgd.hpp"
#include "support/launch_table_of.hpp"
#include "support/random_floats.hpp"
#include "support/small_training.hpp"
#include "train/step_rates.hpp"

namespace holdfast::train {
namespace {

using parallel::Communicator;
using parallel::LaunchTable;
using test::equal_bytes;
using test::image_shape;
using test::launch_table_of;
using test::random_batch;

TEST(ReplicaSlotsOfALaunch, ShareTheCoresOfAHost) {
    EXPECT_EQ(replica_slots(launch_table_of({0}, 8, 8), 1), 8);
    EXPECT_EQ(replica_slots(launch_table_of({0}, 8, 8), 3), 2);
    EXPECT_EQ(replica_slots(launch_table_of({0, 0}, 4, 16), 2), 2);
    EXPECT_EQ(replica_slots(launch_table_of({0, 1}, 4, 16), 1), 4);
}

TEST(ReplicaSlotsOfALaunch, AreAtLeastOneAndAtMostTheReplicas) {
    EXPECT_EQ(replica_slots(launch_table_of({0}, 1, 4), 8), 1);
    EXPECT_EQ(replica_slots(launch_table_of({0}, 64, 3), 1), 3);
    EXPECT_EQ(replica_slots(launch_table_of({0, 0}, 64, 5), 1), 3);  // 2 + 3 replicas
}

TEST(ReplicaSlotsOfALaunch, AreTheLeastOfAllRanks) {
    LaunchTable table = launch_table_of({0, 1}, 8, 16);
    table.rows[1].cores = {0, 1, 2};
    EXPECT_EQ(replica_slots(table, 1), 3);
}

TEST(ReplicaSlotsOfALaunch, RanksWhoseMasksOverlapDoNotCountCoresTwice) {
    LaunchTable table = launch_table_of({0, 0}, 8, 16);
    table.rows[1].cores = table.rows[0].cores;
    EXPECT_EQ(replica_slots(table, 1), 4);
}

TEST(NetworkConfig, FollowsSettingsAndData) {
    data::TrainAndTest const sets = data::synthetic_datasets(10);
    Settings settings;
    settings.width = 5;
    model::ResNetConfig config = network_config(settings, *sets.train);
    EXPECT_EQ(config.depth, 34);
    EXPECT_EQ(config.width, 5);
    EXPECT_EQ(config.num_classes, 10);
    EXPECT_EQ(config.in_channels, 3);
    settings.model = "resnet18";
    EXPECT_EQ(network_config(settings, *sets.train).depth, 18);
}

TEST(LoaderPlan, FollowsSettings) {
    Settings settings;
    settings.seed = 3;
    settings.replicas = 5;
    settings.batch_size = 7;
    data::LoaderPlan plan = loader_plan(settings, {1, 4}, 10, 20);
    EXPECT_EQ(plan.seed, 3u);
    EXPECT_EQ(plan.num_replicas, 5);
    EXPECT_EQ(plan.batch_size, 7);
    EXPECT_EQ(plan.first_replica, 1);
    EXPECT_EQ(plan.end_replica, 4);
    EXPECT_EQ(plan.first_step, 10);
    EXPECT_EQ(plan.end_step, 20);
    EXPECT_EQ(plan.tail, data::Tail::exact);
    EXPECT_EQ(plan.augmentation, data::Augmentation::none);
    settings.tail = "pad";
    settings.augment = "crop-flip";
    plan = loader_plan(settings, {1, 4}, 10, 20);
    EXPECT_EQ(plan.tail, data::Tail::pad);
    EXPECT_EQ(plan.augmentation, data::Augmentation::crop_flip);
}

Settings small_settings(int replicas, std::string const& recipe = "tutorial") {
    Settings settings;
    settings.recipe = recipe;
    settings = with_recipe(settings, {"recipe"});
    settings.replicas = replicas;
    settings.threads = 1;
    settings.model = "resnet18";
    settings.width = 4;
    return settings;
}

struct SmallEngine {
    explicit SmallEngine(int replicas, int slots = 1, std::string const& recipe = "tutorial")
        : engine(alone, small_settings(replicas, recipe), {18, 4, 10, 3},
                 launch_table_of({0}, slots, replicas)) {
        engine.initialize(alone, 0);
    }
    Communicator alone;
    TrainingEngine engine;
};

data::StepBatch step_batch(std::vector<std::int64_t> const& sizes) {
    data::StepBatch batch;
    for (std::size_t replica = 0; replica < sizes.size(); ++replica) {
        batch.replicas.push_back(random_batch(sizes[replica], static_cast<std::uint32_t>(replica)));
        batch.global_samples += sizes[replica];
    }
    return batch;
}

TEST(TrainingEngine, InitializesAsARunStarts) {
    SmallEngine small(2);
    StateTensors const& tensors = small.engine.tensors();
    test::SmallNetwork const expected(0);
    EXPECT_TRUE(equal_bytes(tensors.parameters, expected.tensors.parameters));
    EXPECT_TRUE(equal_bytes(tensors.momentum, std::vector<float>(tensors.momentum.size())));
    EXPECT_TRUE(equal_bytes(tensors.statistics, expected.tensors.statistics));
    EXPECT_EQ(small.engine.replicas(), (parallel::ReplicaRange{0, 2}));
}

TEST(TrainingEngine, AveragesBeginWithTheFirstWeights) {
    SmallEngine small(2, 1, "strong");
    StateTensors const& tensors = small.engine.tensors();
    EXPECT_TRUE(equal_bytes(tensors.average_parameters, tensors.parameters));
    EXPECT_TRUE(equal_bytes(tensors.average_statistics, tensors.statistics));
    EXPECT_FALSE(SmallEngine(2).engine.tensors().has_averages());
}

TEST(TrainingEngine, HasAsManySlotsAsTheTableAllows) {
    EXPECT_EQ(SmallEngine(4, 1).engine.slots().size(), 1);
    EXPECT_EQ(SmallEngine(4, 3).engine.slots().size(), 3);
    EXPECT_EQ(SmallEngine(2, 8).engine.slots().size(), 2);
}

TEST(TrainingStep, IsGradientTreeAndUpdateByTheirDefinition) {
    std::vector<std::int64_t> const sizes{3, 2, 3};
    data::StepBatch const batch = step_batch(sizes);

    test::SmallNetwork expected(0);
    model::FlatLayout const& layout = expected.network.layout;
    std::vector<std::vector<float>> leaves;
    Replica replica(expected.network, expected.tensors);
    for (std::size_t r = 0; r < sizes.size(); ++r) {
        leaves.emplace_back(layout.num_floats);
        replica.train(batch.replicas[r], image_shape,
                      {leaves.back(), static_cast<float>(static_cast<double>(sizes[r]) / 8.0)});
    }
    std::vector<float> sum(layout.num_floats);  // of three: 0 + (1 + 2)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = leaves[0][i] + (leaves[1][i] + leaves[2][i]);
    std::span<float const> const all = sum;
    std::size_t const means = layout.variances_begin - layout.means_begin;
    optim::sgd_step({expected.tensors.parameters, expected.tensors.momentum, {}},
                    all.first(layout.means_begin), 0, {});
    optim::update_running_mean(expected.tensors.statistics.first(means),
                               all.subspan(layout.means_begin, means));
    optim::update_running_variance(
        expected.tensors.statistics.subspan(means),
        all.subspan(layout.variances_begin, layout.tail_begin - layout.variances_begin));

    for (int slots : {1, 2, 3}) {
        SmallEngine small(3, slots);
        StepResult const result = small.engine.training_step().run(batch, image_shape, {}, false);
        EXPECT_TRUE(equal_bytes(small.engine.tensors().parameters, expected.tensors.parameters)) << slots;
        EXPECT_TRUE(equal_bytes(small.engine.tensors().momentum, expected.tensors.momentum)) << slots;
        EXPECT_TRUE(equal_bytes(small.engine.tensors().statistics, expected.tensors.statistics)) << slots;
        EXPECT_EQ(result.samples, 8);
        EXPECT_EQ(result.correct, static_cast<std::int64_t>(sum[layout.tail_begin + tail_correct]));
        EXPECT_EQ(result.loss, sum[layout.tail_begin + tail_loss]);
        EXPECT_TRUE(result.is_finite);
        EXPECT_FALSE(result.stop_requested);
    }
}

TEST(TrainingStep, OfTheStrongRecipeIsItsDefinitionTensorByTensor) {
    data::StepBatch const batch = step_batch({4});
    Settings const settings = small_settings(1, "strong");
    optim::SgdRates const rates = sgd_rates(settings, 0.1, 20);
    test::SmallNetwork expected(0, 18, 4, Averages::kept);
    model::FlatLayout const& layout = expected.network.layout;
    std::vector<float> sum(layout.num_floats);
    Replica(expected.network, expected.tensors, {}, settings.label_smoothing)
        .train(batch.replicas[0], image_shape, {sum, 1.0f, GradientWrite::overwrite});
    std::span<float const> const all = sum;
    StateTensors const& tensors = expected.tensors;
    for (model::FlatTensor const& tensor : layout.parameters) {
        bool const decays = tensor.name == "fc.weight" || tensor.name.find("conv") != std::string::npos ||
                            tensor.name.find("downsample.0") != std::string::npos;
        auto const part = [&](std::span<float> whole) { return whole.subspan(tensor.offset, tensor.size); };
        optim::sgd_step({part(tensors.parameters), part(tensors.momentum), part(tensors.average_parameters)},
                        all.subspan(tensor.offset, tensor.size), decays ? tensor.size : 0, rates);
    }
    std::size_t const means = layout.variances_begin - layout.means_begin;
    optim::update_running_mean(tensors.statistics.first(means), all.subspan(layout.means_begin, means));
    optim::update_running_variance(
        tensors.statistics.subspan(means),
        all.subspan(layout.variances_begin, layout.tail_begin - layout.variances_begin));
    optim::update_average(tensors.average_statistics, tensors.statistics, rates.average_weight);

    SmallEngine small(1, 1, "strong");
    small.engine.training_step().run(batch, image_shape, rates, false);
    auto const found = small.engine.tensors().parts();
    auto const wanted = tensors.parts();
    ASSERT_EQ(found.size(), 5u);
    for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(equal_bytes(found[i].second, wanted[i].second)) << found[i].first;
}

TEST(TrainingStep, AStopRequestTravelsAndChangesNothingElse) {
    data::StepBatch const batch = step_batch({2, 0, 2, 1});
    SmallEngine plain(4, 2);
    SmallEngine asked(4, 2);
    EXPECT_FALSE(plain.engine.training_step().run(batch, image_shape, {}, false).stop_requested);
    EXPECT_TRUE(asked.engine.training_step().run(batch, image_shape, {}, true).stop_requested);
    EXPECT_TRUE(equal_bytes(asked.engine.tensors().parameters, plain.engine.tensors().parameters));
    EXPECT_TRUE(equal_bytes(asked.engine.tensors().statistics, plain.engine.tensors().statistics));
    EXPECT_FALSE(asked.engine.training_step().run(batch, image_shape, {}, false).stop_requested)
        << "asked once only";
}

TEST(TrainingStep, TellsOfANaNInAnyReplica) {
    for (std::size_t bad = 0; bad < 5; ++bad) {
        data::StepBatch batch = step_batch({2, 2, 2, 1, 1});
        batch.replicas[bad].images_NCHW[77] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_FALSE(SmallEngine(5, 2).engine.training_step().run(batch, image_shape, {}, false).is_finite)
            << bad;
    }
}

}  // namespace
}  // namespace holdfast::train
