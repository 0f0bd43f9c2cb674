// SPDX-License-Identifier: Apache-2.0
#include "parallel/shared_memory_exchange.hpp"

#include <algorithm>

namespace holdfast::parallel {

SharedMemoryExchange::SharedMemoryExchange(Communicator const& communicator, ExchangeConfig const& config)
    : gradients_(communicator, config),
      sum_(config.num_replicas, {0, config.num_replicas}, gradients_.partial_sums()),
      mine_(element_chunk(config.num_floats, communicator.rank(), communicator.size())) {
    for (std::size_t i = 0; i < gradients_.partial_sums().size(); ++i)
        sum_.set_source(static_cast<int>(i), gradients_.partial_sum_data(i));
}

void SharedMemoryExchange::reduce(Consume const& consume) {
    gradients_.barrier().wait();
    for (std::size_t begin = mine_.begin; begin < mine_.end;) {
        std::size_t const count = std::min(TreeSum::max_block_floats, mine_.end - begin);
        consume(begin, sum_.block(begin, count));
        begin += count;
    }
    gradients_.barrier().wait();
}

}  // namespace holdfast::parallel
