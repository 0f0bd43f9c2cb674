// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent with momentum on flat float32 buffers, with the bits of torch.optim.SGD's default (foreach)
// implementation. Pure passes over memory: the caller decides which rank updates which piece.
#pragma once

#include <span>

namespace holdfast::optim {

/// momentum = mu * momentum + gradient (unfused), parameter = fma(momentum, -lr, parameter). All spans have one size.
/// Source: torch 2.15 _foreach_mul_, _foreach_add_, _foreach_add_(alpha=-lr); torch's fused=True gives other bits.
void sgd_step(std::span<float> parameters, std::span<float> momentum, std::span<float const> gradient,
              float mu, float lr);

}  // namespace holdfast::optim
