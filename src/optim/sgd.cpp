// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.hpp"

#include <cassert>
#include <cmath>
#include <cstddef>

#include "core/vector_clones.hpp"

namespace holdfast::optim {
namespace {

HOLDFAST_VECTOR_CLONES
void sgd_pass(float* __restrict p, float* __restrict v, float const* __restrict g, std::size_t size, float mu,
              float lr) {
    for (std::size_t i = 0; i < size; ++i) {
        float const velocity = mu * v[i] + g[i];
        v[i] = velocity;
        p[i] = std::fma(velocity, -lr, p[i]);
    }
}

}  // namespace

void sgd_step(std::span<float> parameters, std::span<float> momentum, std::span<float const> gradient,
              float mu, float lr) {
    assert(parameters.size() == gradient.size() && momentum.size() == gradient.size());
    sgd_pass(parameters.data(), momentum.data(), gradient.data(), gradient.size(), mu, lr);
}

}  // namespace holdfast::optim
