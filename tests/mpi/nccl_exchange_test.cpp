// SPDX-License-Identifier: Apache-2.0
// The exchange between GPUs, without a GPU: the same NcclExchange on the host implementation of the device runtime and the
// stand-in libnccl. Its promise is that of the other exchanges: the bits of one serial evaluation of the halving tree.
#include "parallel/nccl_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "cuda/deferred_host_streams.hpp"
#include "support/gradient_leaves.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::parallel {
namespace {

/// A variable of the stand-in, on all ranks, until the end of the scope.
class StandInVariable {
  public:
    StandInVariable(char const* name, std::string const& value) : name_(name) {
        setenv(name, value.c_str(), 1);
    }
    ~StandInVariable() { unsetenv(name_); }
    StandInVariable(StandInVariable const&) = delete;
    StandInVariable& operator=(StandInVariable const&) = delete;

  private:
    char const* name_;
};

std::vector<float> sum_of_step(GradientExchange& exchange, int step, std::size_t num_floats) {
    test::run_plan(exchange.plan(), step, [&](int buffer) { return exchange.buffer(buffer); });
    std::vector<float> sum(num_floats);
    std::vector<int> times_consumed(num_floats);
    exchange.reduce([&](std::size_t offset, std::span<float const> piece) {
        for (std::size_t i = 0; i < piece.size(); ++i) {
            sum[offset + i] = piece[i];
            ++times_consumed[offset + i];
        }
    });
    exchange.wait();
    EXPECT_EQ(times_consumed, std::vector<int>(num_floats, 1));
    return sum;
}

void expect_tree_sum(std::vector<float> const& sum, int step, int num_replicas) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < sum.size(); ++i)
        if (!test::same_bits(sum[i], test::tree_sum(step, i, 0, num_replicas)) && wrong++ == 0)
            ADD_FAILURE() << "element " << i << " in step " << step << " is " << sum[i];
    EXPECT_EQ(wrong, 0u);
}

/// Returns how many partial sums this rank has.
std::size_t check_exchange(Communicator const& world, ExchangeConfig config) {
    if (config.num_replicas < world.size()) return 0;
    SCOPED_TRACE(testing::Message() << "V " << config.num_replicas << ", " << config.num_floats
                                    << " floats, slots " << config.slots << ", rank " << world.rank()
                                    << " of " << world.size());
    cuda::Stream const stream;
    config.device_stream = &stream;
    auto const exchange = collective_make_exchange(world, config);
    EXPECT_EQ(exchange->name(), "NCCL");
    for (int step = 0; step < 2; ++step)
        expect_tree_sum(sum_of_step(*exchange, step, config.num_floats), step, config.num_replicas);
    return exchange->plan().partial_sums.size();
}

TEST(NcclExchange, GivesTheBitsOfTheTree) {
    Communicator const world = Communicator::collective_world();
    std::size_t most_partial_sums = 0;
    for (int replicas = 1; replicas <= 9; ++replicas)
        for (int slots : {1, 2, 8}) {
            std::size_t const num = check_exchange(world, {replicas, std::size_t{16} * 999, slots});
            if (slots == 1) most_partial_sums = std::max(most_partial_sums, num);
        }
    std::vector<std::string> const of_ranks = world.all_gather(std::to_string(most_partial_sums));
    bool const is_power_of_two = (world.size() & (world.size() - 1)) == 0;  // ranges are whole nodes then
    EXPECT_EQ(*std::ranges::max_element(of_ranks) == "1", is_power_of_two);
}

/// Runs the plan, and its last replica as a backward pass does: part by part, in `early`, where nothing is done before somebody
/// waits. What a part holds when it is sent too early is the gradient of the step before. `values` is for the leaf, until it is used.
void run_backward(NcclExchange& exchange, int step, cuda::Stream const& early, std::vector<float>& values) {
    BufferPlan plan = exchange.plan();
    auto const last = std::find_if(plan.actions.rbegin(), plan.actions.rend(), [](auto const& action) {
        return action.kind != BufferPlan::Kind::end_of_wave;
    });
    BufferPlan::Action const last_run = *last;
    plan.actions.erase(std::prev(last.base()), plan.actions.end());
    test::run_plan(plan, step, [&](int buffer) { return exchange.buffer(buffer); });

    std::span<float> const leaf = exchange.buffer(last_run.buffer);
    values.resize(leaf.size());
    for (std::size_t i = 0; i < leaf.size(); ++i) values[i] = test::leaf(step, last_run.replica, i);
    auto const write = [&](std::size_t begin, std::size_t end, cuda::Stream const& stream) {
        cuda::write_leaf(leaf.data() + begin, values.data() + begin, end - begin, 1.0f,
                         last_run.kind == BufferPlan::Kind::run_and_add ? cuda::LeafWrite::add
                                                                        : cuda::LeafWrite::overwrite,
                         nullptr, stream);
    };
    std::size_t rest_begin = 0;
    for (FloatRange const part : exchange.early_parts()) {
        write(part.begin, part.end, early);
        exchange.early_part_written(early);
        rest_begin = std::max(rest_begin, part.end);
    }
    write(rest_begin, leaf.size(), cuda::Stream());
}

TEST(NcclExchange, BeginsBeforeTheBackwardPassEnds) {
    Communicator const world = Communicator::collective_world();
    constexpr std::size_t num_floats = std::size_t{16} * 999;
    constexpr std::size_t num_early_floats = std::size_t{16} * 990;
    for (int replicas : {5, 6, 7, 8})
        for (std::size_t const bucket_floats : {std::size_t{1}, std::size_t{1000}, num_floats / 3, num_floats,
                                                NcclExchange::default_bucket_floats}) {
            if (replicas < world.size()) continue;
            SCOPED_TRACE(testing::Message() << "V " << replicas << ", buckets of " << bucket_floats);
            cuda::Stream const stream;
            ExchangeConfig config{replicas, num_floats, 1, Reduction::exact, &stream};
            config.num_early_floats = num_early_floats;
            NcclExchange exchange(world, config, stream, bucket_floats);
            std::optional<cuda::DeferredHostStreams> deferred(std::in_place);
            cuda::Stream const early;
            deferred.reset();
            std::vector<float> values;
            bool const is_in_parts = world.size() > 1 && bucket_floats < num_early_floats;
            EXPECT_EQ(exchange.early_parts().empty(), !is_in_parts);
            for (FloatRange const part : exchange.early_parts()) EXPECT_LE(part.end, num_early_floats);
            for (int step = 0; step < 3; ++step) {
                // In the middle step one rank has nothing to tell, as with a replica without samples.
                if (step != 1 || world.rank() != world.size() - 1)
                    run_backward(exchange, step, early, values);
                else
                    test::run_plan(exchange.plan(), step,
                                   [&](int buffer) { return exchange.buffer(buffer); });
                std::vector<float> sum(num_floats);
                exchange.reduce([&](std::size_t offset, std::span<float const> piece) {
                    EXPECT_EQ(offset, 0u);
                    sum.assign(piece.begin(), piece.end());
                });
                exchange.wait();
                expect_tree_sum(sum, step, replicas);
            }
        }
}

/// The caller's stream does nothing before somebody waits for it; that of the exchange does its work at once, or neither does.
void check_waiting(Communicator const& world, bool is_exchange_deferred) {
    for (int replicas : {5, 6, 7, 8}) {
        if (replicas < world.size()) continue;
        SCOPED_TRACE(testing::Message()
                     << "V " << replicas << ", exchange deferred: " << is_exchange_deferred);
        std::optional<cuda::DeferredHostStreams> deferred(std::in_place);
        cuda::Stream const stream;
        if (!is_exchange_deferred) deferred.reset();
        NcclExchange exchange(world, {replicas, 4096, 1, Reduction::exact, &stream}, stream, 1000);
        cuda::DeviceFloats const sum(4096);
        for (int step = 0; step < 2; ++step) {
            // As the kernels of a backward pass, the leaves come about in the stream.
            std::vector<std::vector<float>> leaves;
            for (auto const& action : exchange.plan().actions) {
                using Kind = BufferPlan::Kind;
                std::span<float> const to = exchange.buffer(action.buffer);
                if (action.kind == Kind::add) {
                    cuda::sum_in_order(to.data(), {to.data(), exchange.buffer(action.from_buffer).data()},
                                       {{0, 1, -1}}, to.size(), stream);
                } else if (action.kind != Kind::end_of_wave) {
                    std::vector<float>& leaf = leaves.emplace_back();
                    for (std::size_t i = 0; i < to.size(); ++i)
                        leaf.push_back(test::leaf(step, action.replica, i));
                    cuda::write_leaf(
                        to.data(), leaf.data(), to.size(), 1.0f,
                        action.kind == Kind::run ? cuda::LeafWrite::overwrite : cuda::LeafWrite::add, nullptr,
                        stream);
                }
            }
            exchange.reduce([&](std::size_t, std::span<float const> piece) {
                cuda::copy(sum.data(), piece.data(), piece.size_bytes(), stream);
            });
            exchange.wait();
            expect_tree_sum({sum.data(), sum.data() + sum.size()}, step, replicas);
        }
    }
}

TEST(NcclExchange, WaitsForTheGradientAndIsWaitedForByTheUpdate) {
    Communicator const world = Communicator::collective_world();
    check_waiting(world, true);
    check_waiting(world, false);
}

TEST(NcclExchange, OfMoreReplicasAndOfFewerElementsThanRanks) {
    Communicator const world = Communicator::collective_world();
    check_exchange(world, {24, std::size_t{16} * 99, 1});
    check_exchange(world, {100, std::size_t{16} * 20, 1});
    check_exchange(world, {7, 16, 1});
}

TEST(NcclExchange, OnSeveralHosts) {
    Communicator const world = Communicator::collective_world([](int rank) { return rank % 2; });
    for (int replicas : {7, 8}) check_exchange(world, {replicas, 4096, 1});
}

TEST(NcclExchange, WaitsForARankThatIsLate) {
    Communicator const world = Communicator::collective_world();
    StandInVariable const late("NCCL_STAND_IN_DELAY", std::to_string(world.size() - 1) + ":20");
    check_exchange(world, {7, std::size_t{16} * 999, 1});
}

TEST(NcclExchange, FastIsTheSumInAnotherOrder) {
    Communicator const world = Communicator::collective_world();
    constexpr int replicas = 7;
    constexpr std::size_t num_floats = std::size_t{16} * 99;
    cuda::Stream const stream;
    auto const exchange =
        collective_make_exchange(world, {replicas, num_floats, 1, Reduction::fast, &stream});
    EXPECT_EQ(exchange->name(), "NCCL, fast");
    std::vector<float> const sum = sum_of_step(*exchange, 0, num_floats);
    std::size_t different = 0;
    for (std::size_t i = 0; i < num_floats; ++i) {
        if (!test::same_bits(sum[i], test::tree_sum(0, i, 0, replicas))) ++different;
        double exact = 0;
        double magnitude = 0;
        for (int replica = 0; replica < replicas; ++replica) {
            exact += static_cast<double>(test::leaf(0, replica, i));
            magnitude += std::fabs(static_cast<double>(test::leaf(0, replica, i)));
        }
        ASSERT_NEAR(sum[i], exact, 1e-6 * magnitude) << i;
    }
    // On one and two ranks the order of the ranks happens to be the tree's.
    if (world.size() > 2) {
        EXPECT_GT(different, 0u) << "these sums would not notice a wrong order";
    }
}

/// Errors come after the call that caused them, and to all ranks.
TEST(NcclExchange, ALostPeerEndsTheStepOnAllRanks) {
    Communicator const world = Communicator::collective_world();
    if (world.size() == 1) GTEST_SKIP() << "no peer to lose";
    constexpr std::size_t num_floats = std::size_t{16} * 999;
    for (int call : {2, 3}) {  // of the second step: its sends and receives, its all-gather
        StandInVariable const trouble("NCCL_STAND_IN_ERROR", "1:" + std::to_string(call));
        cuda::Stream const stream;
        auto const exchange = collective_make_exchange(world, {8, num_floats, 1, Reduction::exact, &stream});
        sum_of_step(*exchange, 0, num_floats);
        world.barrier();  // whoever still gathers would learn of it then and there
        try {
            exchange->reduce([](std::size_t, std::span<float const>) {});
            exchange->wait();
            ADD_FAILURE() << "no error on rank " << world.rank();
        } catch (Error const& error) {
            EXPECT_EQ(error.code(), ExitCode::retry);
            EXPECT_THAT(error.what(),
                        testing::HasSubstr(world.rank() == 1 ? "system error" : "remote process"));
        }
        world.barrier();
    }
}

TEST(NcclExchange, TellsOfTroubleWhateverTheRankDoes) {
    Communicator const world = Communicator::collective_world();
    if (world.size() == 1) GTEST_SKIP() << "one rank has no use for NCCL";
    test::TemporaryFolder const folder;
    std::string const file = world.broadcast((folder.path() / "trouble").string(), 0);
    StandInVariable const trouble("NCCL_STAND_IN_ERROR_WHEN", "0:" + file);
    cuda::Stream const stream;
    auto const exchange = collective_make_exchange(world, {8, 4096, 1, Reduction::exact, &stream});
    sum_of_step(*exchange, 0, 4096);
    EXPECT_EQ(exchange->trouble(), nullptr);
    world.barrier();
    if (world.rank() == 0) std::ofstream(file) << "now";
    world.barrier();
    if (world.rank() == 0)
        EXPECT_STREQ(exchange->trouble(), "unhandled system error");
    else
        EXPECT_EQ(exchange->trouble(), nullptr);
    world.barrier();
}

/// A rank that cannot must not send from memory that the others expect to be registered.
TEST(NcclFloats, AreRegisteredOnAllRanksOrOnNone) {
    Communicator const world = Communicator::collective_world();
    NcclCommunicator const nccl(world);
    auto const check = [&](bool is_registered) {
        NcclFloats const memory(world, &nccl, 3000);
        EXPECT_EQ(memory.is_registered(), is_registered);
        EXPECT_EQ(std::vector(memory.data(), memory.data() + 3000), std::vector<float>(3000));
    };
    bool const is_old = std::getenv("HOLDFAST_TEST_OLD_NCCL") != nullptr;
    check(!is_old);
    std::optional<StandInVariable> no_memory;
    if (world.rank() == world.size() - 1) no_memory.emplace("NCCL_STAND_IN_NO_MEMORY", "1");
    check(false);
    check_exchange(world, {8, 4096, 1});
}

TEST(NcclExchange, OfOneRankDoesWithoutNccl) {
    Communicator const world = Communicator::collective_world();
    if (world.size() > 1) GTEST_SKIP() << "for one rank";
    StandInVariable const other("NCCL_STAND_IN_VERSION", "21805");
    check_exchange(world, {8, 4096, 1});
}

TEST(NcclVersions, AnotherOneThanBuiltWithIsRefused) {
    Communicator const world = Communicator::collective_world();
    EXPECT_NO_THROW(require_nccl_as_built());
    EXPECT_EQ(nccl_versions().compiled, nccl_versions().loaded);
    StandInVariable const other("NCCL_STAND_IN_VERSION", "21805");
    EXPECT_EQ(nccl_versions().loaded, "2.18.5");
    try {
        NcclCommunicator const nccl(world);
        ADD_FAILURE() << "accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
        EXPECT_THAT(error.what(), testing::HasSubstr("2.18.5 is loaded"));
        EXPECT_THAT(error.what(), testing::HasSubstr("built with NCCL " + nccl_versions().compiled));
    }
}

}  // namespace
}  // namespace holdfast::parallel
