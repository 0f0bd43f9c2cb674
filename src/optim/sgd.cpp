// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.hpp"

#include <algorithm>
#include <cassert>

#include "core/vector_clones.hpp"

namespace holdfast::optim {
namespace {

HOLDFAST_VECTOR_CLONES
void sgd_pass(float* __restrict p, float* __restrict v, float const* __restrict g, std::size_t size,
              bool decays, SgdRates const rates) {
    for (std::size_t i = 0; i < size; ++i) cuda::sgd_update(p[i], v[i], g[i], decays, rates);
}

HOLDFAST_VECTOR_CLONES
void sgd_and_average_pass(float* __restrict p, float* __restrict v, float* __restrict average,
                          float const* __restrict g, std::size_t size, bool decays, SgdRates const rates) {
    for (std::size_t i = 0; i < size; ++i) {
        cuda::sgd_update(p[i], v[i], g[i], decays, rates);
        average[i] = cuda::moved_average(average[i], p[i], rates.average_weight);
    }
}

}  // namespace

void sgd_step(SgdPieces const& pieces, std::span<float const> gradient, std::size_t num_decaying,
              SgdRates const& rates) {
    std::size_t const size = gradient.size();
    assert(pieces.parameters.size() == size && pieces.momentum.size() == size);
    assert(pieces.average.empty() || pieces.average.size() == size);
    auto const pass = [&](std::size_t begin, std::size_t end, bool decays) {
        float* const p = pieces.parameters.data() + begin;
        float* const v = pieces.momentum.data() + begin;
        float const* const g = gradient.data() + begin;
        if (pieces.average.empty())
            sgd_pass(p, v, g, end - begin, decays, rates);
        else
            sgd_and_average_pass(p, v, pieces.average.data() + begin, g, end - begin, decays, rates);
    };
    std::size_t const decaying = rates.weight_decay == 0 ? 0 : std::min(num_decaying, size);
    pass(0, decaying, true);
    pass(decaying, size, false);
}

}  // namespace holdfast::optim
