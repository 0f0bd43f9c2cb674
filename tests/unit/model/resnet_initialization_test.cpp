// SPDX-License-Identifier: Apache-2.0
// The comparison with torchvision itself is tests/reference/compare_initial_weights.py; here is what holds without Python.
#include "model/resnet_initialization.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "core/digest.hpp"

namespace holdfast::model {
namespace {

/// Into memory full of NaN, so that a forgotten element shows.
std::vector<float> initialized(ResNet const& network, std::uint64_t seed) {
    std::vector<float> parameters(network.layout.num_parameter_floats(),
                                  std::numeric_limits<float>::quiet_NaN());
    initialize_parameters(network, seed, parameters);
    return parameters;
}

Digest digest(std::vector<float> const& values) { return digest_of(std::as_bytes(std::span(values))); }

std::span<float const> values_of(std::vector<float> const& parameters, FlatTensor const& tensor) {
    return std::span(parameters).subspan(tensor.offset, tensor.size);
}

TEST(InitializeParameters, IsAFunctionOfTheSeed) {
    ResNet const network = make_resnet({.depth = 18, .width = 8});
    std::set<std::string> digests;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        Digest const first = digest(initialized(network, seed));
        EXPECT_EQ(digest(initialized(network, seed)), first) << seed;
        digests.insert(first.hex());
    }
    EXPECT_EQ(digests.size(), 5u);
}

TEST(InitializeParameters, FillsEverythingAndPadsWithZeros) {
    for (int depth : {18, 34}) {
        ResNet const network = make_resnet({.depth = depth, .width = 3});
        std::vector<float> const parameters = initialized(network, 1);
        std::vector<bool> is_padding(parameters.size(), true);
        for (FlatTensor const& tensor : network.layout.parameters)
            std::fill_n(is_padding.begin() + static_cast<std::ptrdiff_t>(tensor.offset), tensor.size, false);
        std::size_t padding = 0;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            EXPECT_TRUE(std::isfinite(parameters[i])) << i;
            if (!is_padding[i]) continue;
            ++padding;
            EXPECT_EQ(parameters[i], 0.0f) << i;
        }
        EXPECT_GT(padding, 0u);
    }
}

TEST(InitializeParameters, DrawsTheDistributionsOfTorchvision) {
    ResNet const network = make_resnet({.depth = 18, .width = 64});
    std::vector<float> const parameters = initialized(network, 0);
    for (FlatTensor const& tensor : network.layout.parameters) {
        std::span<float const> const values = values_of(parameters, tensor);
        double squares = 0;
        double largest = 0;
        for (float const value : values) {
            squares += static_cast<double>(value) * static_cast<double>(value);
            largest = std::max(largest, std::abs(static_cast<double>(value)));
        }
        double const deviation = std::sqrt(squares / static_cast<double>(values.size()));
        bool const is_uniform = tensor.name == "conv1.weight" || tensor.name.starts_with("fc.");
        if (is_uniform) {  // U(-b, b) with b = 1 / sqrt(fan-in): deviation b / sqrt(3)
            double const bound = 1 / std::sqrt(tensor.name == "conv1.weight" ? 27.0 : 512.0);
            EXPECT_LE(largest, bound) << tensor.name;
            if (values.size() > 100) {
                EXPECT_NEAR(deviation, bound / std::sqrt(3.0), 0.05 * bound) << tensor.name;
            }
        } else if (tensor.shape.size() == 4) {  // N(0, 2 / fan-out)
            double const fan_out = static_cast<double>(tensor.shape[0] * tensor.shape[2] * tensor.shape[3]);
            EXPECT_NEAR(deviation / std::sqrt(2 / fan_out), 1, 0.03) << tensor.name;
        } else {
            float const expected = tensor.name.ends_with("weight") ? 1.0f : 0.0f;
            EXPECT_TRUE(std::ranges::all_of(values, [&](float value) { return value == expected; }))
                << tensor.name;
        }
    }
}

TEST(InitializeParameters, NoTwoLayersAreAlike) {
    ResNet const network = make_resnet({.depth = 34, .width = 8});
    std::vector<float> const parameters = initialized(network, 0);
    std::set<float> first_values;
    std::size_t convolutions = 0;
    for (FlatTensor const& tensor : network.layout.parameters) {
        if (tensor.shape.size() != 4) continue;
        ++convolutions;
        first_values.insert(parameters[tensor.offset]);
    }
    EXPECT_EQ(first_values.size(), convolutions);
}

}  // namespace
}  // namespace holdfast::model
