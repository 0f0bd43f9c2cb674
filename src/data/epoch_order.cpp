// SPDX-License-Identifier: Apache-2.0
#include "data/epoch_order.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "core/error.hpp"

namespace holdfast::data {
namespace {

// From here on torch.randperm draws 64-bit numbers (ATen/native/TensorFactories.cpp, randperm_cpu).
constexpr std::int64_t max_num_samples = std::numeric_limits<std::uint32_t>::max() / 20;

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t num_samples, std::uint64_t seed, std::int64_t epoch) {
    constexpr std::uint64_t max_engine_seed = std::numeric_limits<std::uint32_t>::max();
    require(num_samples >= 1, ExitCode::do_not_requeue,
            "the data set has {} samples (an epoch needs at least one); check --data and --limit-train",
            num_samples);
    require(num_samples < max_num_samples, ExitCode::do_not_requeue,
            "the data set has {} samples (the shuffle is defined below {}); split the data set", num_samples,
            max_num_samples);
    require(
        epoch >= 0 && seed <= max_engine_seed && static_cast<std::uint64_t>(epoch) <= max_engine_seed - seed,
        ExitCode::do_not_requeue,
        "seed {} with epoch {} (the shuffle's engine takes their sum, at most {}); choose a smaller --seed",
        seed, epoch, max_engine_seed);
    std::mt19937 engine(static_cast<std::uint32_t>(seed + static_cast<std::uint64_t>(epoch)));
    std::vector<std::int64_t> order(static_cast<std::size_t>(num_samples));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
        std::swap(order[i], order[i + engine() % (order.size() - i)]);
    }
    return order;
}

std::vector<std::int64_t> with_tail(std::vector<std::int64_t> order, Tail tail, int num_replicas) {
    assert(!order.empty() && num_replicas >= 1);
    if (tail == Tail::exact) return order;
    auto const replicas = static_cast<std::size_t>(num_replicas);
    std::size_t const num_samples = order.size();
    order.resize((num_samples + replicas - 1) / replicas * replicas);
    // More than once around where there are fewer samples than replicas, as DistributedSampler does.
    for (std::size_t i = num_samples; i < order.size(); ++i) order[i] = order[i - num_samples];
    return order;
}

std::int64_t steps_per_epoch(std::int64_t num_samples, int num_replicas, std::int64_t batch_size, Tail tail) {
    assert(num_samples >= 1 && num_replicas >= 1 && batch_size >= 1);
    std::int64_t const padding =
        tail == Tail::pad ? (num_replicas - num_samples % num_replicas) % num_replicas : 0;
    std::int64_t const global_batch_size = num_replicas * batch_size;
    return (num_samples + padding + global_batch_size - 1) / global_batch_size;
}

std::vector<std::int64_t> replica_samples(std::span<std::int64_t const> order, std::int64_t step,
                                          std::int64_t batch_size, int replica, int num_replicas) {
    assert(step >= 0 && batch_size >= 1 && replica >= 0 && replica < num_replicas);
    std::int64_t const global_batch_size = num_replicas * batch_size;
    std::int64_t const end =
        std::min((step + 1) * global_batch_size, static_cast<std::int64_t>(order.size()));
    std::vector<std::int64_t> samples;
    for (std::int64_t i = step * global_batch_size + replica; i < end; i += num_replicas) {
        samples.push_back(order[static_cast<std::size_t>(i)]);
    }
    return samples;
}

}  // namespace holdfast::data
