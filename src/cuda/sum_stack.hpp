// SPDX-License-Identifier: Apache-2.0
// The sums that wait while one is made in postfix order. The newest is always number 0: then the compiler knows every index, and
// in a kernel they lie in registers. An array indexed by the depth would lie in the GPU's local memory.
#pragma once

#include "cuda/host_device.hpp"

namespace holdfast::cuda {

template <int max_depth>
class SumStack {
  public:
    HOLDFAST_HOST_DEVICE void push(float value) {
        for (int i = max_depth - 1; i > 0; --i) waiting_[i] = waiting_[i - 1];
        waiting_[0] = value;
    }
    /// Puts the sum of the two newest in their place, the earlier one left.
    HOLDFAST_HOST_DEVICE void add() {
        waiting_[0] = waiting_[1] + waiting_[0];
        for (int i = 1; i + 1 < max_depth; ++i) waiting_[i] = waiting_[i + 1];
    }
    HOLDFAST_HOST_DEVICE float newest() const { return waiting_[0]; }

  private:
    static_assert(max_depth >= 2, "two are needed to add");
    float waiting_[max_depth] = {};
};

}  // namespace holdfast::cuda
