// SPDX-License-Identifier: Apache-2.0
// Which samples each replica reads, and in which order.
//
// The order depends on (number of samples, seed, epoch) alone, so resuming needs a position and nothing else,
// and the sequence of global batches is the same for any number of ranks. Reading happens in
// batch_loader.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace holdfast::data {

/// What happens with the last, incomplete global batch of an epoch.
enum class Tail {
    exact,  ///< spread over the replicas, nothing padded or dropped: every sample exactly once
    pad,    ///< the order is extended by its own beginning to a multiple of the replicas, as PyTorch's
            ///< DistributedSampler does
};

/// Permutation of [0, num_samples): uses only the engine, because the output of std::shuffle and of the
/// standard distributions is not specified. Source: the algorithm of torch.randperm with a CPU generator
/// seeded by seed + epoch, so it equals the order of PyTorch's DistributedSampler(shuffle=True, seed) after
/// set_epoch(epoch). Throws Error(do_not_requeue) if num_samples < 1 or seed + epoch does not fit the
/// engine's 32 bits.
std::vector<std::int64_t> epoch_order(std::int64_t num_samples, std::uint64_t seed, std::int64_t epoch);

/// Extends `order` for Tail::pad; returns it unchanged for Tail::exact.
std::vector<std::int64_t> with_tail(std::vector<std::int64_t> order, Tail tail, int num_replicas);

/// ceil(n / (V * B)), n counted after padding.
std::int64_t steps_per_epoch(std::int64_t num_samples, int num_replicas, std::int64_t batch_size, Tail tail);

/// The samples of one replica in one global batch: elements replica, replica + V, replica + 2V, ... of the
/// slice [step * V * B, (step + 1) * V * B) of `order`. The last slice may be short: counts then differ by at
/// most one and may be 0. `step` counts within the epoch.
std::vector<std::int64_t> replica_samples(std::span<std::int64_t const> order, std::int64_t step,
                                          std::int64_t batch_size, int replica, int num_replicas);

}  // namespace holdfast::data
