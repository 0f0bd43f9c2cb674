// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_runtime.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "cuda/deferred_host_streams.hpp"
#include "cuda/limited_host_memory.hpp"
#include "optim/moving_average.hpp"
#include "optim/sgd.hpp"
#include "parallel/reduction_tree.hpp"
#include "support/expect_error.hpp"
#include "support/gradient_leaves.hpp"

namespace holdfast::cuda {
namespace {

TEST(DeviceRuntime, SumsInTheOrderOfTheTree) {
    constexpr std::size_t count = 1000;
    for (int replicas = 1; replicas <= 9; ++replicas)
        for (int ranks = 1; ranks <= replicas; ++ranks) {
            std::vector<parallel::ReplicaRange> nodes;
            for (int rank = 0; rank < ranks; ++rank)
                for (auto const& node :
                     parallel::maximal_nodes(replicas, parallel::replica_range(rank, ranks, replicas)))
                    nodes.push_back(node);
            std::vector<DeviceFloats> memory;
            std::vector<float const*> sources;
            for (auto const& node : nodes) {
                float* const data = memory.emplace_back(count).data();
                for (std::size_t i = 0; i < count; ++i) data[i] = test::tree_sum(1, i, node.begin, node.end);
                sources.push_back(data);
            }
            Stream stream;
            DeviceFloats out(count);
            sum_in_order(out.data(), sources, {parallel::postfix_order(replicas, nodes)}, count, stream);
            stream.synchronize();
            for (std::size_t i = 0; i < count; ++i)
                ASSERT_TRUE(test::same_bits(out.data()[i], test::tree_sum(1, i, 0, replicas)))
                    << replicas << " " << ranks;
        }
}

TEST(DeviceRuntime, RefusesMalformedOrders) {
    Stream stream;
    DeviceFloats a(4);
    std::vector<float const*> const sources = {a.data(), a.data()};
    for (std::vector<std::int16_t> const& postfix : std::vector<std::vector<std::int16_t>>{
             {}, {-1}, {0, -1}, {0, 1}, {0, 2, -1}, {0, 1, -2}, {0, 1, -1, -1}})
        EXPECT_THROW(sum_in_order(a.data(), sources, {postfix}, 4, stream), Error);
    std::vector<float const*> const too_many(129, a.data());
    EXPECT_THROW(sum_in_order(a.data(), too_many, {{0}}, 4, stream), Error);
    EXPECT_THROW(sum_in_order(a.data(), sources, {std::vector<std::int16_t>(17, 0)}, 4, stream), Error);
    EXPECT_NO_THROW(sum_in_order(a.data(), sources, {{0, 1, -1}}, 4, stream));
}

TEST(DeviceRuntime, StepsAsTorchDoes) {
    constexpr std::size_t count = 1000;
    Stream stream;
    SgdRates const all{
        .lr = 0.1f, .momentum = 0.9f, .nesterov = true, .weight_decay = 0.03f, .average_weight = 0.01f};
    for (SgdRates const& rates : {SgdRates{}, all})
        for (bool const has_average : {false, true})
            for (std::size_t const num_decaying : {0, 333, 1000}) {
                DeviceFloats p(count), v(count), g(count), a(count);
                DeviceFloats* const from_leaf[] = {&p, &v, &g, &a};
                for (int tensor = 0; tensor < 4; ++tensor)
                    for (std::size_t i = 0; i < count; ++i)
                        from_leaf[tensor]->data()[i] = test::leaf(0, tensor, i);
                std::vector<float> expected_p(p.data(), p.data() + count);
                std::vector<float> expected_v(v.data(), v.data() + count);
                std::vector<float> expected_a(a.data(), a.data() + count);
                optim::sgd_step(
                    {expected_p, expected_v, has_average ? std::span(expected_a) : std::span<float>()},
                    {g.data(), count}, num_decaying, rates);
                sgd_step({p.data(), v.data(), has_average ? a.data() : nullptr}, g.data(), count,
                         num_decaying, rates, stream);
                stream.synchronize();
                for (std::size_t i = 0; i < count; ++i) {
                    ASSERT_TRUE(test::same_bits(v.data()[i], expected_v[i]));
                    ASSERT_TRUE(test::same_bits(p.data()[i], expected_p[i]));
                    ASSERT_TRUE(test::same_bits(a.data()[i], expected_a[i]));
                }
            }
}

TEST(DeviceRuntime, AveragesAsOnTheHost) {
    constexpr std::size_t count = 1000;
    Stream stream;
    for (float const weight : {0.01f, 0.7f, 1.0f}) {
        DeviceFloats average(count), values(count);
        std::vector<float> expected(count);
        for (std::size_t i = 0; i < count; ++i) {
            expected[i] = average.data()[i] = test::leaf(0, 0, i);
            values.data()[i] = test::leaf(0, 1, i);
        }
        optim::update_average(expected, {values.data(), count}, weight);
        update_average(average.data(), values.data(), count, weight, stream);
        stream.synchronize();
        for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(test::same_bits(average.data()[i], expected[i]));
    }
}

TEST(DeviceRuntime, WritesAndAddsLeavesUnfused) {
    constexpr std::size_t count = 1000;
    constexpr float scale = 0.3f;
    Stream stream;
    DeviceFloats leaf(count), source(count), not_finite(1);
    bool fusing_would_differ = false;
    for (std::size_t i = 0; i < count; ++i) source.data()[i] = test::leaf(0, 0, i);
    write_leaf(leaf.data(), source.data(), count, scale, LeafWrite::overwrite, not_finite.data(), stream);
    for (std::size_t i = 0; i < count; ++i)
        ASSERT_TRUE(test::same_bits(leaf.data()[i], scale * source.data()[i]));
    for (std::size_t i = 0; i < count; ++i) source.data()[i] = test::leaf(0, 1, i);
    write_leaf(leaf.data(), source.data(), count, scale, LeafWrite::add, not_finite.data(), stream);
    for (std::size_t i = 0; i < count; ++i) {
        float const before = scale * test::leaf(0, 0, i);
        float const volatile product = scale * source.data()[i];
        float const expected = before + product;
        fusing_would_differ = fusing_would_differ || std::fma(scale, source.data()[i], before) != expected;
        ASSERT_TRUE(test::same_bits(leaf.data()[i], expected));
    }
    EXPECT_TRUE(fusing_would_differ);
    EXPECT_EQ(not_finite.data()[0], 0.0f);
}

TEST(DeviceRuntime, WritesPiecesAndNoticesWhatIsNotFinite) {
    Stream stream;
    DeviceFloats from(100), to(100), not_finite(1);
    for (std::size_t i = 0; i < 100; ++i) from.data()[i] = test::leaf(0, 0, i);
    write_pieces({{to.data() + 50, from.data(), 9}, {to.data(), from.data() + 20, 3}}, not_finite.data(),
                 stream);
    stream.synchronize();
    for (std::size_t i = 0; i < 9; ++i) EXPECT_TRUE(test::same_bits(to.data()[50 + i], from.data()[i]));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(test::same_bits(to.data()[i], from.data()[20 + i]));
    EXPECT_EQ(to.data()[3], 0.0f);
    EXPECT_EQ(not_finite.data()[0], 0.0f);
    from.data()[8] = std::numeric_limits<float>::infinity();
    write_pieces({{to.data(), from.data(), 8}}, not_finite.data(), stream);
    EXPECT_EQ(not_finite.data()[0], 0.0f);
    write_pieces({{to.data(), from.data(), 8}, {to.data(), from.data(), 9}}, not_finite.data(), stream);
    stream.synchronize();
    EXPECT_EQ(not_finite.data()[0], 1.0f);
}

TEST(DeviceRuntime, RoundsToBfloat16AndBackWithoutAnotherRounding) {
    Stream stream;
    float const nan = std::numeric_limits<float>::quiet_NaN();
    float const infinity = std::numeric_limits<float>::infinity();
    std::vector<float> const values{1.0f, 1.00390625f, 1.01171875f, -3.4e38f, 1e-40f, -0.0f, infinity, nan};
    std::vector<float> const expected{1.0f, 1.0f, 1.015625f, -infinity, 0, -0.0f, infinity, nan};
    DeviceFloats from(8), to(8), not_finite(1);
    Memory<std::uint16_t, MemoryKind::device> rounded(8);
    std::copy(values.begin(), values.end(), from.data());
    // All bits of a NaN: rounded by adding to them it would become -0.
    std::uint32_t const all_bits = 0x7fffffff;
    std::memcpy(from.data() + 7, &all_bits, sizeof all_bits);
    round_to_bfloat16(rounded.data(), from.data(), 8, stream);
    write_pieces({{to.data(), rounded.data(), 8, PieceType::bfloat16}}, not_finite.data(), stream);
    stream.synchronize();
    for (std::size_t i = 0; i < 7; ++i) {
        if (i == 4)
            EXPECT_NEAR(to.data()[i] / values[i], 1, 0.1) << "a bfloat16 with one bit";
        else
            EXPECT_TRUE(test::same_bits(to.data()[i], expected[i])) << i;
    }
    EXPECT_TRUE(std::isnan(to.data()[7]));
    EXPECT_EQ(not_finite.data()[0], 1.0f);
}

TEST(DeviceRuntime, ALeafOfNothingIsPlusZero) {
    Stream stream;
    DeviceFloats leaf(3);
    leaf.data()[0] = 2.0f;
    leaf.data()[1] = -0.0f;
    write_leaf(leaf.data(), nullptr, 3, 1.0f, LeafWrite::add, nullptr, stream);
    EXPECT_EQ(leaf.data()[0], 2.0f);
    EXPECT_FALSE(std::signbit(leaf.data()[1]));
    fill_with_zero(leaf.data(), 2, stream);
    EXPECT_EQ(leaf.data()[0], 0.0f);
}

TEST(DeviceRuntime, NoticesWhatIsNotFinite) {
    Stream stream;
    for (float const bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
        DeviceFloats leaf(10), source(10), not_finite(1);
        source.data()[9] = bad;
        write_leaf(leaf.data(), source.data(), 9, 1.0f, LeafWrite::overwrite, not_finite.data(), stream);
        EXPECT_EQ(not_finite.data()[0], 0.0f);
        write_leaf(leaf.data(), source.data(), 10, 1.0f, LeafWrite::overwrite, not_finite.data(), stream);
        EXPECT_EQ(not_finite.data()[0], 1.0f) << bad;
        write_leaf(leaf.data(), source.data(), 9, 1.0f, LeafWrite::overwrite, not_finite.data(), stream);
        EXPECT_EQ(not_finite.data()[0], 1.0f) << "it stays noticed";
    }
}

TEST(DeviceRuntime, UpdatesRunningStatisticsAsTorchDoes) {
    constexpr std::size_t count = 1000;
    Stream stream;
    DeviceFloats mean(count), variance(count), batch(count);
    std::vector<float> expected_mean(count), expected_variance(count);
    for (std::size_t i = 0; i < count; ++i) {
        mean.data()[i] = test::leaf(0, 0, i);
        variance.data()[i] = std::fabs(test::leaf(0, 1, i));
        batch.data()[i] = test::leaf(0, 2, i);
        float const volatile from_batch = 0.1f * batch.data()[i];
        float const volatile from_mean = 0.9f * mean.data()[i];
        float const volatile from_variance = 0.9f * variance.data()[i];
        expected_mean[i] = from_batch + from_mean;
        expected_variance[i] = std::fma(0.1f, batch.data()[i], from_variance);
    }
    update_running_mean(mean.data(), batch.data(), count, stream);
    update_running_variance(variance.data(), batch.data(), count, stream);
    for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(test::same_bits(mean.data()[i], expected_mean[i]));
        ASSERT_TRUE(test::same_bits(variance.data()[i], expected_variance[i]));
    }
}

TEST(DeviceRuntime, SaysWhatIsNeededAndFreeWhereMemoryIsFull) {
    LimitedHostMemory const limit(5'000'000);
    EXPECT_EQ(free_device_memory(), 5'000'000u);
    DeviceFloats const first(1'000'000);
    test::expect_error([] { DeviceFloats const second(500'000); },
                       {"0.002 GB more", "0.001 of its 0.005 GB are free", "--batch-size", "nvidia-smi"});
    EXPECT_NO_THROW(DeviceFloats(250'000));
}

TEST(DeviceRuntime, RecordedWorkIsDoneAtEachLaunchAndNotBefore) {
    Stream stream;
    DeviceFloats sum(1), one(1);
    one.data()[0] = 1.0f;
    Graph const graph(stream,
                      [&] { write_leaf(sum.data(), one.data(), 1, 2.0f, LeafWrite::add, nullptr, stream); });
    EXPECT_EQ(sum.data()[0], 0.0f);
    for (int launch = 1; launch <= 3; ++launch) {
        graph.launch(stream);
        stream.synchronize();
        EXPECT_EQ(sum.data()[0], 2.0f * static_cast<float>(launch));
    }
    one.data()[0] = 10.0f;
    graph.launch(stream);
    stream.synchronize();
    EXPECT_EQ(sum.data()[0], 26.0f);
}

TEST(DeviceRuntime, MemoryIsZeroAlignedAndMovable) {
    DeviceFloats a(100);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 256, 0u);
    EXPECT_EQ(a.data()[99], 0.0f);
    Stream stream;
    float const seven = 7;
    copy(a.data() + 3, &seven, sizeof seven, stream);
    stream.synchronize();
    DeviceFloats const b = std::move(a);
    EXPECT_EQ(b.size(), 100u);
    EXPECT_EQ(b.data()[3], 7.0f);
    DeviceFloats const none;
    EXPECT_EQ(none.data(), nullptr);
    EXPECT_EQ(DeviceFloats(0).size(), 0u);
    PinnedBytes pinned(300);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned.data()) % 256, 0u);
    EXPECT_EQ(pinned.data()[299], 0);
    pinned = PinnedBytes(7);
    EXPECT_EQ(pinned.size(), 7u);
}

// Of the host implementation, on which the tests of who has to wait for whom stand.
TEST(DeferredHostStreams, DoNothingUntilSomebodyWaits) {
    DeferredHostStreams const deferred;
    Stream stream;
    float const one = 1, two = 2;
    DeviceFloats memory(1);
    Event first, last;
    copy(memory.data(), &one, sizeof one, stream);
    first.record(stream);
    copy(memory.data(), &two, sizeof two, stream);
    last.record(stream);
    EXPECT_EQ(memory.data()[0], 0.0f);
    EXPECT_FALSE(first.is_reached());  // but asking took some time
    EXPECT_TRUE(first.is_reached());
    EXPECT_EQ(memory.data()[0], 1.0f);
    last.synchronize();
    EXPECT_EQ(memory.data()[0], 2.0f);
    Event const of_nothing;
    of_nothing.synchronize();
    EXPECT_TRUE(of_nothing.is_reached());
}

/// A GPU has no time of what it has not reached.
TEST(DeferredHostStreams, AreWaitedForByWhoAsksForTheTimeBetween) {
    DeferredHostStreams const deferred;
    Stream stream;
    float const one = 1;
    DeviceFloats memory(1);
    Event first(EventTime::kept), last(EventTime::kept);
    first.record(stream);
    copy(memory.data(), &one, sizeof one, stream);
    last.record(stream);
    EXPECT_GE(last.seconds_since(first), 0.0);
    EXPECT_EQ(memory.data()[0], 1.0f);
}

TEST(DeferredHostStreams, WaitForOneAnotherOnlyAtEvents) {
    DeferredHostStreams const deferred;
    Stream a, b;
    float const one = 1;
    DeviceFloats from(1), to(1);
    Event is_there;
    for (bool const waits : {false, true}) {
        copy(from.data(), &one, sizeof one, a);
        is_there.record(a);
        if (waits) is_there.make_wait(b);
        copy(to.data(), from.data(), sizeof one, b);
        b.synchronize();
        EXPECT_EQ(to.data()[0], waits ? 1.0f : 0.0f);
    }
}

TEST(DeferredHostStreams, EndWithTheirScope) {
    { DeferredHostStreams const deferred; }
    Stream stream;
    float const one = 1;
    DeviceFloats memory(1);
    copy(memory.data(), &one, sizeof one, stream);
    EXPECT_EQ(memory.data()[0], 1.0f);
}

}  // namespace
}  // namespace holdfast::cuda
