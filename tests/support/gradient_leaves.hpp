// SPDX-License-Identifier: Apache-2.0
// Gradients for tests of the exchange: random floats of very different magnitudes, for which almost any other
// order of summation gives other bits, the sum in the order of the halving tree, written down independently
// of src/parallel, and the run of a buffer plan.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include "parallel/reduction_tree.hpp"

namespace holdfast::test {

/// Element i of replica r's gradient in step `step`.
inline float leaf(int step, int replica, std::size_t i) {
    std::uint64_t x =
        (static_cast<std::uint64_t>(step) << 52) ^ (static_cast<std::uint64_t>(replica) << 40) ^ i;
    x += 0x9e3779b97f4a7c15u;  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    float const fraction = static_cast<float>(x >> 40) / static_cast<float>(1 << 24) - 0.5f;
    return std::ldexp(fraction, static_cast<int>(x % 24) - 12);
}

/// node(lo, hi) = node(lo, mid) + node(mid, hi), mid = lo + (hi - lo) / 2.
inline float tree_sum(int step, std::size_t i, int lo, int hi) {
    if (hi - lo == 1) return leaf(step, lo, i);
    int const mid = lo + (hi - lo) / 2;
    float const volatile left = tree_sum(step, i, lo, mid);
    float const volatile right = tree_sum(step, i, mid, hi);
    return left + right;
}

inline float naive_sum(int step, std::size_t i, int num_replicas) {
    float sum = 0;
    for (int r = 0; r < num_replicas; ++r) sum += leaf(step, r, i);
    return sum;
}

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// Does what a trainer does with the plan; throws if the plan asks for something impossible.
inline void run_plan(parallel::BufferPlan const& plan, int step,
                     std::function<std::span<float>(int)> const& buffer) {
    using Kind = parallel::BufferPlan::Kind;
    int running = 0;
    bool running_alone = false;
    for (auto const& action : plan.actions) {
        if (action.buffer < 0 || action.buffer >= plan.num_buffers) throw std::logic_error("no such buffer");
        std::span<float> const to = buffer(action.buffer);
        switch (action.kind) {
            case Kind::run:
                if (running_alone) throw std::logic_error("a run beside a run_and_add");
                ++running;
                for (std::size_t i = 0; i < to.size(); ++i) to[i] = leaf(step, action.replica, i);
                break;
            case Kind::run_and_add:
                if (running > 0) throw std::logic_error("a run_and_add beside a run");
                ++running;
                running_alone = true;
                for (std::size_t i = 0; i < to.size(); ++i) to[i] += leaf(step, action.replica, i);
                break;
            case Kind::end_of_wave:
                running = 0;
                running_alone = false;
                break;
            case Kind::add: {
                if (running > 0) throw std::logic_error("an add before the end of the wave");
                std::span<float> const from = buffer(action.from_buffer);
                for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
                break;
            }
        }
    }
    if (running > 0) throw std::logic_error("a wave without end");
}

}  // namespace holdfast::test
