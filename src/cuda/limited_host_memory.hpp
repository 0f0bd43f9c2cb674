// SPDX-License-Identifier: Apache-2.0
// A switch of the host implementation, for tests: memory as scarce as a GPU's.
#pragma once

#include <cstddef>

namespace holdfast::cuda {

/// While it lives, so much device memory can be taken in this process; what is given back does not count. One at a time.
class LimitedHostMemory {
  public:
    explicit LimitedHostMemory(std::size_t size_bytes);
    ~LimitedHostMemory();
    LimitedHostMemory(LimitedHostMemory const&) = delete;
    LimitedHostMemory& operator=(LimitedHostMemory const&) = delete;
};

}  // namespace holdfast::cuda
