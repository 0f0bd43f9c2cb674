// SPDX-License-Identifier: Apache-2.0
#include "data/epoch_order.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/digest.hpp"
#include "support/expect_error.hpp"

namespace holdfast::data {
namespace {

using test::expect_error;

struct TorchOrder {
    std::int64_t num_samples;
    std::uint64_t seed;
    std::int64_t epoch;
    char const* digest;
};

// XXH3-128 of the little-endian int64 values of torch.randperm(n, generator=g), g.manual_seed(seed + epoch),
// torch 2.15.
constexpr TorchOrder torch_orders[] = {
    {1, 0, 0, "2c0a8a99dc147d5445c3b49d035665b2"},
    {1, 0, 1, "2c0a8a99dc147d5445c3b49d035665b2"},
    {1, 0, 7, "2c0a8a99dc147d5445c3b49d035665b2"},
    {1, 1, 0, "2c0a8a99dc147d5445c3b49d035665b2"},
    {1, 1, 1, "2c0a8a99dc147d5445c3b49d035665b2"},
    {1, 1, 7, "2c0a8a99dc147d5445c3b49d035665b2"},
    {1, 1234, 0, "2c0a8a99dc147d5445c3b49d035665b2"},
    {1, 1234, 1, "2c0a8a99dc147d5445c3b49d035665b2"},
    {1, 1234, 7, "2c0a8a99dc147d5445c3b49d035665b2"},
    {10, 0, 0, "aee38e43ec078211adf498095ac75bf8"},
    {10, 0, 1, "d34f396164a2ee720a6c20c40591c6ca"},
    {10, 0, 7, "05b80364358a9d79abee50f1917a1014"},
    {10, 1, 0, "d34f396164a2ee720a6c20c40591c6ca"},
    {10, 1, 1, "037dbfe5fca3ea004b107db3e218b521"},
    {10, 1, 7, "39a11c36fbac036b674456e103358a85"},
    {10, 1234, 0, "86f98275769f79c3620268eb4c1e0e35"},
    {10, 1234, 1, "f9f18f56dbe371a9c0c3f673fbf909fb"},
    {10, 1234, 7, "725864333210db71ae76829a416e511e"},
    {97, 0, 0, "63fbab5a22550db0ce819241876040d6"},
    {97, 0, 1, "6281902c704f938ea8358e40aebeb05a"},
    {97, 0, 7, "588644f63969509cc1ce7c65d77cf7ae"},
    {97, 1, 0, "6281902c704f938ea8358e40aebeb05a"},
    {97, 1, 1, "28115fd19ca3041f06481864b4acbb16"},
    {97, 1, 7, "6e08261ed96e8c0f572d6ea0b26d4e61"},
    {97, 1234, 0, "97a2d494c590ed4e802092da36c19741"},
    {97, 1234, 1, "6e1441db3aac816af8f637a74e3ca8b1"},
    {97, 1234, 7, "ac704fdb68a957bd06432637707b1184"},
    {1000, 0, 0, "0d49092e119201663d677f545d846e4a"},
    {1000, 0, 1, "da9e07d4a4fc045cef28f6cf3f6f18cd"},
    {1000, 0, 7, "99603f3fb2774c62ab2102da35c04bb4"},
    {1000, 1, 0, "da9e07d4a4fc045cef28f6cf3f6f18cd"},
    {1000, 1, 1, "1c36886c7df39daadb20c22ec649d25c"},
    {1000, 1, 7, "0f445e4e81afa0f672e223b263000d50"},
    {1000, 1234, 0, "be58179a29f8586e1a065a1c33bb4f55"},
    {1000, 1234, 1, "51f9ae994ede055960fe3a26113c9c28"},
    {1000, 1234, 7, "71d1afdf88a20a89a3c1068e0a9b11f5"},
    {25000, 0, 0, "f22b287fc953a92acca14152878413fd"},
    {25000, 0, 1, "ce3be465c01cf1a9c839191a6fc68936"},
    {25000, 0, 7, "2c4c63c4fc397d12518263a2bcb784de"},
    {25000, 1, 0, "ce3be465c01cf1a9c839191a6fc68936"},
    {25000, 1, 1, "649fd7873bebb27e00f9762cbb1c2dab"},
    {25000, 1, 7, "97fdedad549a4b7d90e71666bbf1b572"},
    {25000, 1234, 0, "5aa8490f8db69c6f7609bd84e2ab0ec9"},
    {25000, 1234, 1, "688107f4a85927207a7461bc2b61fd22"},
    {25000, 1234, 7, "0bf07e2d114eb792f67c2cce98794e76"},
    {50000, 0, 0, "e5609b9963459566a5e30c416dff2dd5"},
    {50000, 0, 1, "d8ceb606350ba0e9d16ce6cf4392b8f3"},
    {50000, 0, 7, "b5d1ef972437fe8adc85f550aa9db8a6"},
    {50000, 1, 0, "d8ceb606350ba0e9d16ce6cf4392b8f3"},
    {50000, 1, 1, "ba2521f353a06af6ca0e9545d88ea192"},
    {50000, 1, 7, "c27b94b98cd6e7152126b8a9bffed2a8"},
    {50000, 1234, 0, "fd2e4848652877a475ee555287b9913b"},
    {50000, 1234, 1, "c58137d9e3091c1231394464c8c6df67"},
    {50000, 1234, 7, "7aeee678f807ed3d9e88205ff1ce1c9f"},
};

std::string digest(std::vector<std::int64_t> const& order) {
    return holdfast::digest_of(std::as_bytes(std::span(order))).hex();
}

TEST(EpochOrder, EqualsTorchRandperm) {
    for (auto const& [num_samples, seed, epoch, expected] : torch_orders) {
        EXPECT_EQ(digest(epoch_order(num_samples, seed, epoch)), expected)
            << "n " << num_samples << " seed " << seed << " epoch " << epoch;
    }
}

/// What the Python at HOLDFAST_PYTHON (else python3) prints; empty if it fails.
std::string run_python(std::string const& program) {
    char const* const given = std::getenv("HOLDFAST_PYTHON");
    std::string const command =
        fmt::format("\"{}\" -c '{}' 2>/dev/null", given != nullptr ? given : "python3", program);
    std::FILE* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return {};
    std::string output;
    char buffer[65536];
    for (std::size_t count; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
        output.append(buffer, count);
    return ::pclose(pipe) == 0 ? output : std::string();
}

TEST(EpochOrder, PaddedReplicasEqualTheDistributedSamplerThatIsInstalled) {
    std::string const expected = run_python(
        "import torch.utils.data as d\n"
        "for n in (1, 5, 97, 1000):\n"
        "  for v in (1, 3, 7, 12):\n"
        "    for epoch in (0, 2):\n"
        "      for r in range(v):\n"
        "        s = d.DistributedSampler(range(n), num_replicas=v, rank=r, shuffle=True, seed=3)\n"
        "        s.set_epoch(epoch)\n"
        "        print(*s)");
    if (expected.empty()) GTEST_SKIP() << "no Python with torch: set HOLDFAST_PYTHON";
    std::string actual;
    for (std::int64_t const n : {1, 5, 97, 1000}) {
        for (int const replicas : {1, 3, 7, 12}) {
            for (std::int64_t const epoch : {0, 2}) {
                auto const order = with_tail(epoch_order(n, 3, epoch), Tail::pad, replicas);
                for (int replica = 0; replica < replicas; ++replica) {
                    std::vector<std::int64_t> samples;
                    for (std::int64_t step = 0; step < steps_per_epoch(n, replicas, 4, Tail::pad); ++step) {
                        auto const batch = replica_samples(order, step, 4, replica, replicas);
                        samples.insert(samples.end(), batch.begin(), batch.end());
                    }
                    actual += fmt::format("{}\n", fmt::join(samples, " "));
                }
            }
        }
    }
    EXPECT_EQ(actual, expected);
}

TEST(EpochOrder, DiffersBetweenEpochsAndSeedsAndRepeats) {
    EXPECT_EQ(epoch_order(1000, 5, 3), epoch_order(1000, 5, 3));
    EXPECT_NE(epoch_order(1000, 5, 3), epoch_order(1000, 5, 4));
    EXPECT_NE(epoch_order(1000, 5, 3), epoch_order(1000, 6, 3));
}

TEST(EpochOrder, RefusesWhatTheShuffleCannotDo) {
    expect_error([] { epoch_order(0, 1, 0); }, {"0 samples"});
    expect_error([] { epoch_order(-3, 1, 0); }, {"-3 samples"});
    expect_error([] { epoch_order(214'748'364, 1, 0); }, {"214748364 samples"});
    expect_error([] { epoch_order(10, 4'294'967'295u, 1); }, {"4294967295", "--seed"});
    expect_error([] { epoch_order(10, std::uint64_t{1} << 63, 0); }, {"--seed"});
    expect_error([] { epoch_order(10, 1, -1); }, {"epoch -1"});
    EXPECT_EQ(epoch_order(10, 4'294'967'290u, 5).size(), 10u);
}

class Slices : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(Slices, CoverEverySampleExactlyOnceWithCountsThatDifferByAtMostOne) {
    auto const [num_samples, replicas, batch_size] = GetParam();
    auto const order = with_tail(epoch_order(num_samples, 9, 1), Tail::exact, replicas);
    std::int64_t const steps = steps_per_epoch(num_samples, replicas, batch_size, Tail::exact);
    std::vector<std::int64_t> seen;
    for (std::int64_t step = 0; step < steps; ++step) {
        std::size_t fewest = order.size(), most = 0;
        std::vector<std::vector<std::int64_t>> per_replica;
        for (int replica = 0; replica < replicas; ++replica) {
            per_replica.push_back(replica_samples(order, step, batch_size, replica, replicas));
            fewest = std::min(fewest, per_replica.back().size());
            most = std::max(most, per_replica.back().size());
            seen.insert(seen.end(), per_replica.back().begin(), per_replica.back().end());
        }
        EXPECT_LE(most - fewest, 1u);
        EXPECT_GE(most, 1u) << "step " << step << " has no sample";
        EXPECT_LE(most, static_cast<std::size_t>(batch_size));
        EXPECT_TRUE(step + 1 == steps || fewest == static_cast<std::size_t>(batch_size));
        // The global batch is the slice of the order, whoever reads which part.
        std::vector<std::int64_t> together;
        for (std::size_t i = 0; i < most; ++i) {
            for (auto const& samples : per_replica) {
                if (i < samples.size()) together.push_back(samples[i]);
            }
        }
        auto const begin = order.begin() + step * replicas * batch_size;
        EXPECT_TRUE(std::equal(together.begin(), together.end(), begin));
    }
    EXPECT_TRUE(replica_samples(order, steps, batch_size, 0, replicas).empty());
    std::sort(seen.begin(), seen.end());
    std::vector<std::int64_t> all(static_cast<std::size_t>(num_samples));
    std::iota(all.begin(), all.end(), std::int64_t{0});
    EXPECT_EQ(seen, all);
}

TEST_P(Slices, PaddedOnesAreEquallyLongAndRepeatTheBeginning) {
    auto const [num_samples, replicas, batch_size] = GetParam();
    auto const plain = epoch_order(num_samples, 9, 1);
    auto const order = with_tail(plain, Tail::pad, replicas);
    ASSERT_EQ(order.size() % static_cast<std::size_t>(replicas), 0u);
    ASSERT_LT(order.size(), plain.size() + static_cast<std::size_t>(replicas));
    for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], plain[i % plain.size()]);
    std::size_t total = 0;
    std::int64_t const steps = steps_per_epoch(num_samples, replicas, batch_size, Tail::pad);
    for (std::int64_t step = 0; step < steps; ++step) {
        std::size_t const count = replica_samples(order, step, batch_size, 0, replicas).size();
        EXPECT_GE(count, 1u);
        for (int replica = 0; replica < replicas; ++replica) {
            EXPECT_EQ(replica_samples(order, step, batch_size, replica, replicas).size(), count);
            total += count;
        }
    }
    EXPECT_EQ(total, order.size());
}

INSTANTIATE_TEST_SUITE_P(Sizes, Slices,
                         testing::Combine(testing::Values(1, 2, 5, 96, 97, 1009),
                                          testing::Values(1, 2, 3, 5, 6, 7, 13),
                                          testing::Values(1, 3, 16, 128)));

TEST(StepsPerEpoch, AreThoseOfTheTutorial) {
    EXPECT_EQ(steps_per_epoch(50000, 1, 128, Tail::exact), 391);
    EXPECT_EQ(steps_per_epoch(50000, 2, 128, Tail::exact), 196);
    EXPECT_EQ(steps_per_epoch(97, 4, 25, Tail::pad), 1);
    EXPECT_EQ(steps_per_epoch(97, 4, 24, Tail::exact), 2);
}

}  // namespace
}  // namespace holdfast::data
