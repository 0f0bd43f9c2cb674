// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "support/random_floats.hpp"

namespace holdfast::optim {
namespace {

using test::equal_bytes;
using test::random_floats;

constexpr float mu = 0.9f;
constexpr float lr = 0.1f;

struct State {
    std::vector<float> parameters;
    std::vector<float> momentum;
};

State start(std::size_t size) { return {random_floats(size, 1), random_floats(size, 2)}; }

/// The definition with every rounding spelled out: a product or sum of floats is exact enough in double to round once.
State defined_step(State state, std::vector<float> const& gradient) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        float const product =
            static_cast<float>(static_cast<double>(mu) * static_cast<double>(state.momentum[i]));
        float const velocity =
            static_cast<float>(static_cast<double>(product) + static_cast<double>(gradient[i]));
        state.momentum[i] = velocity;
        state.parameters[i] = std::fmaf(velocity, -lr, state.parameters[i]);
    }
    return state;
}

TEST(SgdStep, HasTheBitsOfItsDefinitionInEverySize) {
    for (std::size_t size : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 1000, 4097}) {
        State state = start(size);
        State expected = state;
        for (std::uint32_t step = 0; step < 3; ++step) {
            std::vector<float> const gradient = random_floats(size, 10 + step);
            sgd_step(state.parameters, state.momentum, gradient, mu, lr);
            expected = defined_step(expected, gradient);
        }
        EXPECT_TRUE(equal_bytes(state.parameters, expected.parameters)) << size;
        EXPECT_TRUE(equal_bytes(state.momentum, expected.momentum)) << size;
    }
}

TEST(SgdStep, OtherRoundingsWouldBeNoticed) {
    State const before = start(1000);
    std::vector<float> const gradient = random_floats(1000, 10);
    State const expected = defined_step(before, gradient);
    int fused_momentum = 0;
    int unfused_parameter = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        if (std::fmaf(mu, before.momentum[i], gradient[i]) != expected.momentum[i]) ++fused_momentum;
        double const product =
            static_cast<float>(static_cast<double>(expected.momentum[i]) * static_cast<double>(lr));
        if (static_cast<float>(static_cast<double>(before.parameters[i]) - product) != expected.parameters[i])
            ++unfused_parameter;
    }
    EXPECT_GT(fused_momentum, 10);
    EXPECT_GT(unfused_parameter, 10);
}

TEST(SgdStep, PiecesGiveTheBitsOfTheWhole) {
    std::vector<float> const gradient = random_floats(1000, 10);
    State whole = start(1000);
    State pieces = whole;
    sgd_step(whole.parameters, whole.momentum, gradient, mu, lr);
    for (std::size_t begin = 0; begin < gradient.size(); begin += 37) {
        std::size_t const size = std::min<std::size_t>(37, gradient.size() - begin);
        sgd_step(std::span(pieces.parameters).subspan(begin, size),
                 std::span(pieces.momentum).subspan(begin, size), std::span(gradient).subspan(begin, size),
                 mu, lr);
    }
    EXPECT_TRUE(equal_bytes(pieces.parameters, whole.parameters));
    EXPECT_TRUE(equal_bytes(pieces.momentum, whole.momentum));
}

TEST(SgdStep, PaddingOfZerosStaysZero) {
    State state{std::vector<float>(16), std::vector<float>(16)};
    std::vector<float> const zeros(16);
    for (int step = 0; step < 3; ++step) sgd_step(state.parameters, state.momentum, zeros, mu, lr);
    EXPECT_TRUE(equal_bytes(state.parameters, zeros));
    EXPECT_TRUE(equal_bytes(state.momentum, zeros));
}

}  // namespace
}  // namespace holdfast::optim
