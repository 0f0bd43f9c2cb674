// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent with momentum on flat float32 buffers, with the bits of torch.optim.SGD's default (foreach)
// implementation, and the moving average of the parameters in the same pass. Pure passes over memory: the caller decides which
// rank updates which piece.
#pragma once

#include <cstddef>
#include <span>

#include "cuda/update_rules.hpp"

namespace holdfast::optim {

using cuda::SgdRates;

/// Pieces of one size; `average` may be empty: then none is kept.
struct SgdPieces {
    std::span<float> parameters;
    std::span<float> momentum;
    std::span<float> average;
};

/// cuda::sgd_update of every element, then cuda::moved_average of it. The first `num_decaying` elements decay, if the rates say
/// how much.
void sgd_step(SgdPieces const& pieces, std::span<float const> gradient, std::size_t num_decaying,
              SgdRates const& rates);

}  // namespace holdfast::optim
