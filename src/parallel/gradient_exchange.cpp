// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_exchange.hpp"

#include "parallel/mpi_exchange.hpp"
#include "parallel/nccl_exchange.hpp"
#include "parallel/shared_memory_exchange.hpp"

namespace holdfast::parallel {

std::unique_ptr<GradientExchange> collective_make_exchange(Communicator const& communicator,
                                                           ExchangeConfig const& config) {
    if (config.device_stream != nullptr)
        return std::make_unique<NcclExchange>(communicator, config, *config.device_stream);
    if (communicator.num_hosts() > 1) return std::make_unique<MpiExchange>(communicator, config);
    return std::make_unique<SharedMemoryExchange>(communicator, config);
}

}  // namespace holdfast::parallel
