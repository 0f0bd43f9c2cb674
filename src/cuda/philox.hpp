// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, a counter-based generator: random bits are a function of (key, counter). There is no state to save, and none
// that could be advanced differently on other ranks.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the constants are those of Random123's philox.h.
#pragma once

#include <cstdint>

#include "cuda/host_device.hpp"

namespace holdfast::cuda {

struct PhiloxKey {
    std::uint32_t word[2];
};

struct PhiloxBlock {
    std::uint32_t word[4];
};

/// 128 random bits.
HOLDFAST_HOST_DEVICE inline PhiloxBlock philox4x32_10(PhiloxKey key, PhiloxBlock counter) {
    for (int round = 0; round < 10; ++round) {
        std::uint64_t const product0 = std::uint64_t{0xD2511F53u} * counter.word[0];
        std::uint64_t const product1 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
        counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key.word[0],
                    static_cast<std::uint32_t>(product1),
                    static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key.word[1],
                    static_cast<std::uint32_t>(product0)}};
        key.word[0] += 0x9E3779B9u;  // golden ratio
        key.word[1] += 0xBB67AE85u;  // sqrt(3) - 1
    }
    return counter;
}

}  // namespace holdfast::cuda
