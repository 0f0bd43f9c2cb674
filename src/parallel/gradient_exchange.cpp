// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_exchange.hpp"

#include "core/error.hpp"
#include "parallel/shared_memory_exchange.hpp"

namespace holdfast::parallel {

std::unique_ptr<GradientExchange> collective_make_exchange(Communicator const& communicator,
                                                           ExchangeConfig const& config) {
    require(communicator.num_hosts() == 1, ExitCode::do_not_requeue, "several hosts are not supported yet; use one");
    return std::make_unique<SharedMemoryExchange>(communicator, config);
}

}  // namespace holdfast::parallel
