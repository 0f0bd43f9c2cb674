// SPDX-License-Identifier: Apache-2.0
// The promise of the whole: a run of V replicas has the same bits on any number of ranks, on any hosts, with its replicas at
// the same time or in turn, on CPUs or with the path that GPUs take (here on the host implementation of the device runtime and
// the stand-in NCCL). The reference is one process that knows no MPI and runs all replicas one after the other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "cuda/deferred_host_streams.hpp"
#include "data/synthetic_images.hpp"
#include "support/launch_table_of.hpp"
#include "train/evaluate.hpp"
#include "train/step_rates.hpp"
#include "train/training_engine.hpp"

namespace holdfast::train {
namespace {

using parallel::Communicator;
using parallel::HostOf;

constexpr std::int64_t batch_size = 2;  // per replica
constexpr int steps_of_a_part = 3;

struct Case {
    int num_replicas = 4;
    int depth = 18;
    int width = 4;
    int threads = 1;
    std::int64_t seed = 1;
    std::string recipe = "tutorial";
    friend auto operator<=>(Case const&, Case const&) = default;
};

std::ostream& operator<<(std::ostream& stream, Case const& c) {
    return stream << "V " << c.num_replicas << ", ResNet" << c.depth << " of width " << c.width << ", "
                  << c.threads << " threads, seed " << c.seed << ", " << c.recipe << " recipe";
}

int world_rank() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

/// The hosts of all ranks, by rank.
std::vector<int> collective_hosts(Communicator const& communicator) {
    std::vector<int> hosts;
    for (std::string const& text : communicator.all_gather(std::to_string(communicator.host())))
        hosts.push_back(std::stoi(text));
    return hosts;
}

Settings settings_of(Case const& c) {
    Settings settings;
    settings.recipe = c.recipe;
    settings = with_recipe(settings, {"recipe"});
    settings.replicas = c.num_replicas;
    settings.batch_size = batch_size;
    settings.seed = c.seed;
    settings.threads = c.threads;
    return settings;
}

optim::SgdRates rates_of(Case const& c, std::int64_t step) { return sgd_rates(settings_of(c), 0.05, step); }

TrainingEngine collective_make_engine(Communicator const& communicator, Case const& c, int slots,
                                      ComputeDevice device = {}) {
    parallel::LaunchTable const table =
        test::launch_table_of(collective_hosts(communicator), slots * c.threads, c.num_replicas);
    return TrainingEngine(communicator, settings_of(c), {c.depth, c.width, 10, 3}, table, device);
}

/// What GPUs run, in host memory.
ComputeDevice device_in_host_memory(CudaGraphs graphs = CudaGraphs::off) {
    static cuda::Stream const stream;
    return {.stream = &stream, .graphs = graphs};
}

/// The way the images take to a device: null for CPUs, all there at once for even V, otherwise with their step, as late as may be.
std::unique_ptr<data::DeviceImages> images_on(ComputeDevice device, data::ImageDataset const& dataset,
                                              data::DeviceImages::Plan const& plan, Case const& c) {
    if (!device.has_device_memory()) return nullptr;
    cuda::DeferredHostStreams const deferred;
    return std::make_unique<data::DeviceImages>(dataset, data::cifar10_normalization(), plan, device.gpu,
                                                c.num_replicas % 2 == 0 ? cuda::free_device_memory() : 0);
}

/// All that a run leaves: parameters, momentum, running statistics, averages, and after them each step's loss.
struct Result {
    std::vector<float> state;
    std::vector<std::int64_t> counts;  ///< samples and hits of each step
};

/// Two parts of three steps. The last step of the first has V + 1 samples, so that one replica gets two of them; that of the
/// second V - 1, so that one replica gets none.
Result collective_train(Communicator const& communicator, Case const& c, int slots,
                        ComputeDevice device = {}) {
    TrainingEngine engine = collective_make_engine(communicator, c, slots, device);
    engine.initialize(communicator, static_cast<std::uint64_t>(c.seed));
    Result result;
    std::vector<float> losses;
    for (std::int64_t const last : {c.num_replicas + 1, c.num_replicas - 1}) {
        data::TrainAndTest const sets =
            data::synthetic_datasets((steps_of_a_part - 1) * batch_size * c.num_replicas + last);
        data::LoaderPlan const plan = loader_plan(settings_of(c), engine.replicas(), 0, steps_of_a_part);
        std::unique_ptr<data::DeviceImages> const images =
            images_on(device, *sets.train, plan.device_plan(), c);
        data::BatchLoader loader(*sets.train, data::cifar10_normalization(), plan, images.get());
        for (int step = 0; step < steps_of_a_part; ++step) {
            data::StepBatch const& batch = loader.next();
            EXPECT_EQ(batch.global_samples, step == steps_of_a_part - 1 ? last : batch_size * c.num_replicas);
            StepResult const done = engine.training_step().run(batch, sets.train->shape(), rates_of(c, step),
                                                               false, [&] { return loader.look_ahead(); });
            EXPECT_EQ(engine.training_step().is_ahead(),
                      device.has_device_memory() && step + 1 < steps_of_a_part);
            EXPECT_TRUE(done.is_finite);
            EXPECT_GE(done.compute_s, 0.0);
            EXPECT_GE(done.exchange_s, 0.0);
            losses.push_back(done.loss);
            result.counts.push_back(done.samples);
            result.counts.push_back(done.correct);
        }
    }
    for (int rank = 0; rank < communicator.size(); ++rank) {
        communicator
            .barrier();  // on devices each rank has a state of its own: one after the other shows it to its host
        if (rank != communicator.rank()) continue;
        engine.training_step().fetch_state();
        for (auto const& [name, part] : engine.tensors().parts())
            result.state.insert(result.state.end(), part.begin(), part.end());
    }
    result.state.insert(result.state.end(), losses.begin(), losses.end());
    communicator.barrier();  // the host's memory is copied by all before it goes
    return result;
}

/// Computed once per case, by rank 0 alone, and told to the others.
Result const& collective_reference(Communicator const& world, Case const& c) {
    static std::map<Case, Result> known;
    if (auto const found = known.find(c); found != known.end()) return found->second;
    Result result;
    if (world.rank() == 0) result = collective_train(Communicator(), c, 1);
    std::uint64_t sizes[2] = {result.state.size(), result.counts.size()};
    world.broadcast(std::as_writable_bytes(std::span(sizes)), 0);
    result.state.resize(sizes[0]);
    result.counts.resize(sizes[1]);
    world.broadcast(std::as_writable_bytes(std::span(result.state)), 0);
    world.broadcast(std::as_writable_bytes(std::span(result.counts)), 0);
    return known[c] = std::move(result);
}

void expect_same(Result const& result, Result const& reference) {
    EXPECT_EQ(result.counts, reference.counts);
    ASSERT_EQ(result.state.size(), reference.state.size());
    if (std::memcmp(result.state.data(), reference.state.data(), result.state.size() * sizeof(float)) == 0)
        return;
    std::size_t different = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < result.state.size(); ++i)
        if (std::memcmp(&result.state[i], &reference.state[i], sizeof(float)) != 0 && different++ == 0)
            first = i;
    ADD_FAILURE() << different << " of " << result.state.size() << " values differ, first number " << first
                  << ": " << result.state[first] << " in place of " << reference.state[first];
}

void collective_check(Communicator const& world, Case const& c, int slots, ComputeDevice device = {}) {
    if (c.num_replicas < world.size()) return;
    SCOPED_TRACE(testing::Message() << c << ", " << slots << " slots, rank " << world.rank() << " of "
                                    << world.size() << " on " << world.num_hosts() << " hosts");
    Result const& reference = collective_reference(world, c);
    expect_same(collective_train(world, c, slots, device), reference);
}

/// What --check-replicas-every compares.
TEST(StateDigests, AreOfTheRanksOwnDevice) {
    Communicator const world = Communicator::collective_world();
    if (world.size() < 2) GTEST_SKIP() << "needs two ranks";
    Case const strong{.num_replicas = world.size(), .recipe = "strong"};
    TrainingEngine engine = collective_make_engine(world, strong, 1, device_in_host_memory());
    engine.initialize(world, 1);
    std::string const good = engine.training_step().state_digests();
    for (std::string const& other : world.all_gather(good)) EXPECT_EQ(other, good);
    if (world.rank() == 1) {
        engine.tensors().average_statistics.front() = 1;
        engine.training_step().load_state();
    }
    world.barrier();
    if (world.rank() == 1)
        engine.tensors().average_statistics.front() = 0;  // what the host shares is as before
    world.barrier();
    std::vector<std::string> const now = world.all_gather(engine.training_step().state_digests());
    for (std::size_t rank = 0; rank < now.size(); ++rank) EXPECT_EQ(now[rank] == good, rank != 1) << rank;
}

/// Hosts of so many ranks, in turn: {1, 3} is 1, 3, 1, 3 ... ranks.
HostOf hosts_of_sizes(std::vector<int> const& sizes) {
    return [sizes](int rank) {
        int host = 0;
        for (int first = 0;; ++host) {
            first += sizes[static_cast<std::size_t>(host) % sizes.size()];
            if (rank < first) return host;
        }
    };
}

TEST(TrainingBits, OnOneHost) {
    Communicator const world = Communicator::collective_world();
    for (int num_replicas : {4, 5, 6})
        for (int slots : {1, 3}) collective_check(world, {num_replicas}, slots);
}

TEST(TrainingBits, OnSeveralHosts) {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (std::vector<int> const& sizes :
         {std::vector{1}, std::vector{2}, std::vector{1, 3}, std::vector{3, 1}, std::vector{2, 1}}) {
        Communicator const world = Communicator::collective_world(hosts_of_sizes(sizes));
        if (world.num_hosts() == 1) continue;  // too few ranks: done above
        for (int num_replicas : {4, 5, 6})
            collective_check(world, {num_replicas}, 1 + (num_replicas + sizes.front()) % 2);
    }
}

TEST(TrainingBits, OnHostsThatTheRanksWereDealtTo) {
    Communicator const world = Communicator::collective_world([](int rank) { return rank % 2; });
    for (int num_replicas : {5, 6}) collective_check(world, {num_replicas}, 1);
}

TEST(TrainingBits, OfADeeperNetworkAndOfSeveralThreads) {
    Communicator const world = Communicator::collective_world();
    collective_check(world, {.num_replicas = 6, .depth = 34}, 2);
    collective_check(world, {.num_replicas = 4, .threads = 2}, 2);
}

TEST(TrainingBits, OfTheStrongRecipe) {
    Communicator const world = Communicator::collective_world(hosts_of_sizes({1, 3}));
    Case const strong{.num_replicas = 5, .recipe = "strong"};
    collective_check(world, strong, 2);
    collective_check(world, strong, 1, device_in_host_memory());
}

TEST(TrainingBits, OnDevices) {
    Communicator const world = Communicator::collective_world();
    for (int num_replicas : {4, 5, 6}) collective_check(world, {num_replicas}, 1, device_in_host_memory());
    collective_check(world, {.num_replicas = 6, .depth = 34}, 1, device_in_host_memory());
}

/// Wide enough for a gradient of two buckets, one of which is exchanged before the backward pass ends.
TEST(TrainingBits, OfAnExchangeBesideTheBackwardPass) {
    Communicator const world = Communicator::collective_world();
    if (world.size() != 2 && world.size() != 3)
        GTEST_SKIP() << "on two and three ranks; it takes much memory";
    Case const wide{.num_replicas = 3, .width = 64};
    EXPECT_EQ(collective_make_engine(world, wide, 1, device_in_host_memory()).exchange().early_parts().size(),
              1u);
    collective_check(world, wide, 1, device_in_host_memory());
}

/// A rank with two replicas or more replays their passes from the second step on.
TEST(TrainingBits, OfReplayedGraphs) {
    Communicator const world = Communicator::collective_world();
    collective_check(world, {5}, 1, device_in_host_memory(CudaGraphs::on));
}

TEST(TrainingBits, OnDevicesOfSeveralHosts) {
    Communicator const world = Communicator::collective_world(hosts_of_sizes({1, 3}));
    collective_check(world, {5}, 1, device_in_host_memory());
}

/// A comparison that accepts everything would pass all of the above.
TEST(TrainingBits, OfAnotherRunAreOthers) {
    if (world_rank() != 0) return;
    auto const state = [](Case const& c) { return collective_train(Communicator(), c, 1).state; };
    std::vector<float> const seed_1 = state({.num_replicas = 4, .seed = 1});
    EXPECT_EQ(seed_1, state({.num_replicas = 4, .seed = 1}));
    EXPECT_NE(seed_1, state({.num_replicas = 4, .seed = 2}));
    EXPECT_NE(seed_1, state({.num_replicas = 5, .seed = 1}));
    std::vector<float> const strong = state({.num_replicas = 4, .recipe = "strong"});
    EXPECT_GT(strong.size(), seed_1.size());
    EXPECT_NE(strong, state({.num_replicas = 4, .seed = 2, .recipe = "strong"}));
}

TEST(GradientMemory, OfOneRankWithManyReplicasGrowsWithTheDepthOfTheTree) {
    if (world_rank() != 0) return;
    Communicator const alone;
    for (int slots : {1, 2, 4, 8}) {
        TrainingEngine engine = collective_make_engine(alone, {.num_replicas = 16}, slots);
        EXPECT_LE(engine.exchange().plan().num_buffers, slots + 4 + 1) << slots << " slots, log2(16) = 4";
    }
}

TEST(EvaluationBits, AreThoseOfOneRank) {
    for (std::vector<int> const& sizes : {std::vector{6}, std::vector{1}, std::vector{2, 1}}) {
        Communicator const world = Communicator::collective_world(hosts_of_sizes(sizes));
        for (auto const& [slots, device] :
             {std::pair{1, ComputeDevice{}}, {2, ComputeDevice{}}, {1, device_in_host_memory()}}) {
            Case const c{.num_replicas = 6};
            TrainingEngine engine = collective_make_engine(world, c, slots, device);
            engine.initialize(world, 3);
            for (auto const& [size, batch] :
                 {std::pair{31, 4}, std::pair{7, 1}, std::pair{3, 1}, std::pair{2, 128}, std::pair{1, 1}}) {
                SCOPED_TRACE(testing::Message()
                             << size << " samples in batches of " << batch << ", " << world.size()
                             << " ranks on " << world.num_hosts() << " hosts, slots " << slots);
                data::TrainAndTest const sets = data::synthetic_datasets(size);
                EvaluationSums expected;
                if (world.rank() == 0) {
                    Communicator const alone;
                    TrainingEngine one = collective_make_engine(alone, c, 1);
                    one.initialize(alone, 3);
                    expected = collective_evaluate(alone, one.slots(), *sets.train,
                                                   data::cifar10_normalization(), batch)
                                   .value();
                }
                world.broadcast(std::as_writable_bytes(std::span(&expected, 1)), 0);
                auto const images = images_on(device, *sets.train, {.max_samples = batch}, c);
                EvaluationSums const sums =
                    collective_evaluate(
                        world, engine.slots(), *sets.train, data::cifar10_normalization(), batch,
                        [] { return false; }, images.get())
                        .value();
                EXPECT_EQ(sums.count, size);
                EXPECT_EQ(sums.correct, expected.correct);
                EXPECT_EQ(sums.loss, expected.loss);
                EXPECT_TRUE(std::isfinite(sums.loss) && sums.loss > 0);
            }
        }
    }
}

}  // namespace
}  // namespace holdfast::train
