// SPDX-License-Identifier: Apache-2.0
// The exchange between GPUs, without a GPU: the same NcclExchange on the host implementation of the device runtime and the
// stand-in libnccl. Its promise is that of the other exchanges: the bits of one serial evaluation of the halving tree.
#include "parallel/nccl_exchange.hpp"

#include <cmath>
#include <cstdlib>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "support/gradient_leaves.hpp"

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
    EXPECT_EQ(times_consumed, std::vector<int>(num_floats, 1));
    return sum;
}

void check_exchange(Communicator const& world, ExchangeConfig config) {
    if (config.num_replicas < world.size()) return;
    SCOPED_TRACE(testing::Message() << "V " << config.num_replicas << ", " << config.num_floats
                                    << " floats, slots " << config.slots << ", rank " << world.rank()
                                    << " of " << world.size());
    cuda::Stream const stream;
    config.device_stream = &stream;
    auto const exchange = collective_make_exchange(world, config);
    EXPECT_EQ(exchange->name(), "NCCL");
    for (int step = 0; step < 2; ++step) {
        std::vector<float> const sum = sum_of_step(*exchange, step, config.num_floats);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < sum.size(); ++i)
            if (!test::same_bits(sum[i], test::tree_sum(step, i, 0, config.num_replicas)) && wrong++ == 0)
                ADD_FAILURE() << "element " << i << " in step " << step << " is " << sum[i];
        EXPECT_EQ(wrong, 0u);
    }
}

TEST(NcclExchange, GivesTheBitsOfTheTree) {
    Communicator const world = Communicator::collective_world();
    for (int replicas = 1; replicas <= 9; ++replicas)
        for (int slots : {1, 2, 8}) check_exchange(world, {replicas, std::size_t{16} * 999, slots});
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
    StandInVariable const late("HOLDFAST_NCCL_STAND_IN_DELAY", std::to_string(world.size() - 1) + ":20");
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
    for (std::size_t i = 0; i < num_floats; ++i) {
        double exact = 0;
        double magnitude = 0;
        for (int replica = 0; replica < replicas; ++replica) {
            exact += static_cast<double>(test::leaf(0, replica, i));
            magnitude += std::fabs(static_cast<double>(test::leaf(0, replica, i)));
        }
        ASSERT_NEAR(sum[i], exact, 1e-6 * magnitude) << i;
    }
}

/// Errors come after the call that caused them, and to all ranks.
TEST(NcclExchange, ALostPeerEndsTheStepOnAllRanks) {
    Communicator const world = Communicator::collective_world();
    if (world.size() == 1) GTEST_SKIP() << "no peer to lose";
    constexpr std::size_t num_floats = std::size_t{16} * 999;
    for (int call : {2, 3}) {  // of the second step: its sends and receives, its all-gather
        StandInVariable const trouble("HOLDFAST_NCCL_STAND_IN_ERROR", "1:" + std::to_string(call));
        cuda::Stream const stream;
        auto const exchange = collective_make_exchange(world, {8, num_floats, 1, Reduction::exact, &stream});
        sum_of_step(*exchange, 0, num_floats);
        world.barrier();  // whoever still gathers would learn of it then and there
        try {
            exchange->reduce([](std::size_t, std::span<float const>) {});
            ADD_FAILURE() << "no error on rank " << world.rank();
        } catch (Error const& error) {
            EXPECT_EQ(error.code(), ExitCode::retry);
            EXPECT_THAT(error.what(),
                        testing::HasSubstr(world.rank() == 1 ? "system error" : "remote process"));
        }
        world.barrier();
    }
}

TEST(NcclVersions, AnotherOneThanBuiltWithIsRefused) {
    Communicator const world = Communicator::collective_world();
    EXPECT_NO_THROW(require_nccl_as_built());
    EXPECT_EQ(nccl_versions().compiled, nccl_versions().loaded);
    StandInVariable const other("HOLDFAST_NCCL_STAND_IN_VERSION", "21805");
    EXPECT_EQ(nccl_versions().loaded, "2.18.5");
    cuda::Stream const stream;
    try {
        collective_make_exchange(world, {8, 16, 1, Reduction::exact, &stream});
        ADD_FAILURE() << "accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
        EXPECT_THAT(error.what(), testing::HasSubstr("2.18.5 is loaded"));
        EXPECT_THAT(error.what(), testing::HasSubstr("built with NCCL " + nccl_versions().compiled));
    }
}

}  // namespace
}  // namespace holdfast::parallel
