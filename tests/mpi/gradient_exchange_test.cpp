// SPDX-License-Identifier: Apache-2.0
// The promise of the exchange: whatever the number of ranks and their split into hosts, the bits of one
// serial evaluation of the halving tree, each element consumed once per host.
#include "parallel/gradient_exchange.hpp"

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "parallel/host_shared_memory.hpp"
#include "parallel/mpi_exchange.hpp"
#include "support/gradient_leaves.hpp"

namespace holdfast::parallel {
namespace {

constexpr int num_steps = 2;

using Make = std::function<std::unique_ptr<GradientExchange>(Communicator const&, ExchangeConfig const&)>;

/// Two steps; the consumers write into memory the host shares, as the optimizer does.
void check_exchange(Communicator const& world, ExchangeConfig const& config, Make const& make) {
    if (config.num_replicas < world.size()) return;
    SCOPED_TRACE(testing::Message() << "V " << config.num_replicas << ", " << config.num_floats
                                    << " floats, slots " << config.slots << ", rank " << world.rank()
                                    << " of " << world.size() << " on " << world.num_hosts() << " hosts");
    auto const exchange = make(world, config);
    HostSharedMemory const result =
        HostSharedMemory::collective_allocate(world, 2 * config.num_floats * sizeof(float));
    std::span<float> const sums = result.floats().first(config.num_floats);
    std::span<float> const times_consumed = result.floats().subspan(config.num_floats);
    for (int step = 0; step < num_steps; ++step) {
        test::run_plan(exchange->plan(), step, [&](int buffer) { return exchange->buffer(buffer); });
        exchange->reduce([&](std::size_t offset, std::span<float const> sum) {
            for (std::size_t i = 0; i < sum.size(); ++i) {
                sums[offset + i] = sum[i];
                times_consumed[offset + i] += 1;
            }
        });
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < config.num_floats; ++i) {
            bool const right = test::same_bits(sums[i], test::tree_sum(step, i, 0, config.num_replicas)) &&
                               times_consumed[i] == static_cast<float>(step + 1);
            if (!right && wrong++ == 0)
                ADD_FAILURE() << "element " << i << " in step " << step << ": " << sums[i] << ", consumed "
                              << times_consumed[i] << " times";
        }
        EXPECT_EQ(wrong, 0u);
        world.barrier();  // nobody writes the next sums while another still looks at these
    }
}

TEST(GradientExchange, AsTheMachineIsEveryNumberOfReplicasAndSlots) {
    Communicator const world = Communicator::collective_world();
    // Set by two_hosts_test.sh: otherwise a broken split into hosts would pass as one host.
    char const* const expected_hosts = std::getenv("HOLDFAST_TEST_NUM_HOSTS");
    EXPECT_EQ(world.num_hosts(), expected_hosts != nullptr ? std::atoi(expected_hosts) : 1);
    for (int replicas = 1; replicas <= 9; ++replicas)
        for (int slots : {1, 2, 8})
            check_exchange(world, {replicas, 16 * 999, slots}, collective_make_exchange);
}

/// Sizes of the hosts, in turn, as long as there are ranks: {1, 3} is hosts of 1, 3, 1, 3 ... ranks.
HostOf hosts_of_sizes(std::vector<int> const& sizes) {
    return [sizes](int world_rank) {
        int host = 0;
        for (int first = 0;; ++host) {
            first += sizes[static_cast<std::size_t>(host) % sizes.size()];
            if (world_rank < first) return host;
        }
    };
}

TEST(GradientExchange, BetweenHostsOfAnySizes) {
    for (std::vector<int> const& sizes : {std::vector{1}, std::vector{2}, std::vector{3}, std::vector{1, 3},
                                          std::vector{3, 1, 2}, std::vector{4, 1}}) {
        Communicator const world = Communicator::collective_world(hosts_of_sizes(sizes));
        // Pieces so small that there are many rounds, also incomplete ones.
        auto const make = [](Communicator const& communicator, ExchangeConfig const& config) {
            return std::make_unique<MpiExchange>(communicator, config, 256);
        };
        for (int replicas = 4; replicas <= 9; ++replicas) {
            check_exchange(world, {replicas, 16 * 299, 1}, make);
            check_exchange(world, {replicas, 16 * 99, 8}, collective_make_exchange);
        }
        check_exchange(world, {24, 16 * 99, 2}, make);
        check_exchange(world, {6, 16, 1}, make);
    }
}

TEST(GradientExchange, BetweenHostsThatTheRanksWereDealtTo) {
    Communicator const world = Communicator::collective_world([](int rank) { return rank % 2; });
    for (int replicas : {6, 7}) check_exchange(world, {replicas, 4096, 1}, collective_make_exchange);
}

TEST(GradientExchange, RanksMayHaveDifferentSlots) {
    Communicator const world = Communicator::collective_world();
    for (int replicas : {7, 12})
        check_exchange(world, {replicas, 4096, 1 + world.rank() % 3}, collective_make_exchange);
}

TEST(GradientExchange, FewerElementsThanRanks) {
    Communicator const world = Communicator::collective_world();
    check_exchange(world, {6, 16, 1}, collective_make_exchange);
}

TEST(GradientExchange, NaiveSumsAreDifferent) {
    for (int replicas = 4; replicas <= 9; ++replicas) {
        int different = 0;
        for (std::size_t i = 0; i < 1000; ++i)
            if (!test::same_bits(test::tree_sum(0, i, 0, replicas), test::naive_sum(0, i, replicas)))
                ++different;
        EXPECT_GT(different, 100) << "these numbers would not notice a wrong order, V " << replicas;
    }
}

}  // namespace
}  // namespace holdfast::parallel
