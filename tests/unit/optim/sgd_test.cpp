// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "support/random_floats.hpp"

namespace holdfast::optim {
namespace {

using test::equal_bytes;
using test::random_floats;

// Powers of two would hide a wrong rounding.
constexpr SgdRates plain{.lr = 0.1f, .momentum = 0.9f};
constexpr SgdRates all{
    .lr = 0.1f, .momentum = 0.9f, .nesterov = true, .weight_decay = 0.03f, .average_weight = 0.01f};

struct State {
    std::vector<float> parameters;
    std::vector<float> momentum;
    std::vector<float> average;

    SgdPieces pieces() { return {parameters, momentum, average}; }
    SgdPieces pieces(std::size_t begin, std::size_t size) {
        auto const part = [&](std::vector<float>& whole) {
            return whole.empty() ? std::span<float>() : std::span(whole).subspan(begin, size);
        };
        return {part(parameters), part(momentum), part(average)};
    }
};

State start(std::size_t size, bool with_average = true) {
    return {random_floats(size, 1), random_floats(size, 2),
            with_average ? random_floats(size, 3) : std::vector<float>()};
}

void expect_equal(State const& state, State const& expected) {
    EXPECT_TRUE(equal_bytes(state.parameters, expected.parameters));
    EXPECT_TRUE(equal_bytes(state.momentum, expected.momentum));
    EXPECT_TRUE(equal_bytes(state.average, expected.average));
}

/// Products and sums of two floats are exact enough in double to round once.
float product(float a, float b) {
    return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}
float sum(float a, float b) { return static_cast<float>(static_cast<double>(a) + static_cast<double>(b)); }

/// The definition with every rounding spelled out.
State defined_step(State state, std::vector<float> const& gradient, std::size_t num_decaying,
                   SgdRates const& rates) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        float slope = gradient[i];
        if (i < num_decaying) slope = std::fmaf(rates.weight_decay, state.parameters[i], slope);
        float const velocity = sum(product(rates.momentum, state.momentum[i]), slope);
        state.momentum[i] = velocity;
        float const direction = rates.nesterov ? std::fmaf(rates.momentum, velocity, slope) : velocity;
        state.parameters[i] = std::fmaf(direction, -rates.lr, state.parameters[i]);
        if (state.average.empty()) continue;
        float const difference = sum(state.parameters[i], -state.average[i]);
        state.average[i] = std::fmaf(rates.average_weight, difference, state.average[i]);
    }
    return state;
}

TEST(SgdStep, HasTheBitsOfItsDefinitionInEverySize) {
    for (std::size_t size : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 1000, 4097})
        for (SgdRates const& rates : {plain, all})
            for (bool const with_average : {false, true})
                for (std::size_t const num_decaying : {std::size_t{0}, size / 3, size}) {
                    SCOPED_TRACE(testing::Message() << size << ", " << num_decaying << " decay");
                    State state = start(size, with_average);
                    State expected = state;
                    for (std::uint32_t step = 0; step < 3; ++step) {
                        std::vector<float> const gradient = random_floats(size, 10 + step);
                        sgd_step(state.pieces(), gradient, num_decaying, rates);
                        expected = defined_step(expected, gradient,
                                                rates.weight_decay == 0 ? 0 : num_decaying, rates);
                    }
                    expect_equal(state, expected);
                }
}

TEST(SgdStep, OtherRoundingsWouldBeNoticed) {
    State const before = start(1000);
    std::vector<float> const gradient = random_floats(1000, 10);
    State const expected = defined_step(before, gradient, 1000, all);
    int unfused_decay = 0;
    int fused_momentum = 0;
    int unfused_direction = 0;
    int unfused_parameter = 0;
    int unfused_average = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        float const p = before.parameters[i];
        float const slope = std::fmaf(all.weight_decay, p, gradient[i]);
        unfused_decay += sum(product(all.weight_decay, p), gradient[i]) != slope ? 1 : 0;
        float const velocity = expected.momentum[i];
        fused_momentum += std::fmaf(all.momentum, before.momentum[i], slope) != velocity ? 1 : 0;
        float const direction = std::fmaf(all.momentum, velocity, slope);
        unfused_direction += sum(product(all.momentum, velocity), slope) != direction ? 1 : 0;
        unfused_parameter += sum(p, -product(direction, all.lr)) != expected.parameters[i] ? 1 : 0;
        float const difference = sum(expected.parameters[i], -before.average[i]);
        unfused_average +=
            sum(before.average[i], product(all.average_weight, difference)) != expected.average[i] ? 1 : 0;
    }
    for (int const count :
         {unfused_decay, fused_momentum, unfused_direction, unfused_parameter, unfused_average})
        EXPECT_GT(count, 10);
}

TEST(SgdStep, PiecesGiveTheBitsOfTheWhole) {
    constexpr std::size_t num_decaying = 500;  // inside a piece
    std::vector<float> const gradient = random_floats(1000, 10);
    State whole = start(1000);
    State pieces = whole;
    sgd_step(whole.pieces(), gradient, num_decaying, all);
    for (std::size_t begin = 0; begin < gradient.size(); begin += 37) {
        std::size_t const size = std::min<std::size_t>(37, gradient.size() - begin);
        sgd_step(pieces.pieces(begin, size), std::span(gradient).subspan(begin, size),
                 std::max(num_decaying, begin) - begin, all);
    }
    expect_equal(pieces, whole);
}

TEST(SgdStep, WhereNothingDecaysTheSignsOfZerosStay) {
    State state{{1.0f, -1.0f}, {-0.0f, -0.0f}, {}};
    std::vector<float> const gradient{-0.0f, -0.0f};
    sgd_step(state.pieces(), gradient, 2, plain);
    EXPECT_TRUE(equal_bytes(state.momentum, std::vector{-0.0f, -0.0f}));
}

TEST(SgdStep, PaddingOfZerosStaysZero) {
    std::vector<float> const zeros(16);
    State state{zeros, zeros, zeros};
    for (int step = 0; step < 3; ++step) sgd_step(state.pieces(), zeros, 8, all);
    expect_equal(state, {zeros, zeros, zeros});
}

}  // namespace
}  // namespace holdfast::optim
