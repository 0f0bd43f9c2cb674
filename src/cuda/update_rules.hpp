// SPDX-License-Identifier: Apache-2.0
// What a step does to one parameter, for the pass over host memory and the kernel alike. Fused multiply-adds are where torch
// has them and nowhere else.
#pragma once

#include <cmath>
#include <cstddef>

#include "cuda/host_device.hpp"

namespace holdfast::cuda {

/// Of one step, the same for all parameters.
struct SgdRates {
    float lr = 0.1f;
    float momentum = 0.9f;
    bool nesterov = false;
    float weight_decay = 0;
    float average_weight = 0;  ///< of the new value in the moving average of a parameter, in (0, 1]
};

/// torch.optim.SGD's default (foreach) implementation, dampening 0. Where a parameter does not decay nothing is added to the
/// gradient, not even a zero. Source: torch 2.15 _foreach_add(alpha=weight_decay), _foreach_mul_, _foreach_add_,
/// _foreach_add_(alpha=momentum), _foreach_add_(alpha=-lr), each of which rounds once; torch's fused=True gives other bits.
HOLDFAST_HOST_DEVICE inline void sgd_update(float& parameter, float& velocity, float gradient, bool decays,
                                            SgdRates const& rates) {
    float const slope = decays ? fmaf(parameter, rates.weight_decay, gradient) : gradient;
    velocity = rates.momentum * velocity + slope;
    float const direction = rates.nesterov ? fmaf(velocity, rates.momentum, slope) : velocity;
    parameter = fmaf(direction, -rates.lr, parameter);
}

/// (1 - weight) * average + weight * value. Source: torch 2.15 lerp, which torch.optim.swa_utils averages with.
HOLDFAST_HOST_DEVICE inline float moved_average(float average, float value, float weight) {
    float const difference = value - average;
    return weight < 0.5f ? fmaf(weight, difference, average) : fmaf(weight - 1, difference, value);
}

/// Of one size. No average is kept where it is null.
struct SgdTensors {
    float* parameters;
    float* momentum;
    float* average;
};

/// sgd_update and moved_average of element i; the first `num_decaying` elements decay, if the rates say how much.
HOLDFAST_HOST_DEVICE inline void sgd_update_element(SgdTensors const& tensors, float const* gradient,
                                                    std::size_t i, std::size_t num_decaying,
                                                    SgdRates const& rates) {
    float parameter = tensors.parameters[i];
    float velocity = tensors.momentum[i];
    sgd_update(parameter, velocity, gradient[i], i < num_decaying && rates.weight_decay != 0, rates);
    tensors.parameters[i] = parameter;
    tensors.momentum[i] = velocity;
    if (tensors.average != nullptr)
        tensors.average[i] = moved_average(tensors.average[i], parameter, rates.average_weight);
}

}  // namespace holdfast::cuda
