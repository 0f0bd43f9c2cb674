// SPDX-License-Identifier: Apache-2.0
// The exchange on one host: every rank reads its share of all ranks' gradients where they lie, adds them up
// block by block and consumes each block while it is in cache. Nothing is copied.
#pragma once

#include <string>

#include "parallel/gradient_exchange.hpp"
#include "parallel/host_gradients.hpp"

namespace holdfast::parallel {

class SharedMemoryExchange : public GradientExchange {
  public:
    /// Collective. All ranks must be on one host.
    SharedMemoryExchange(Communicator const& communicator, ExchangeConfig const& config);

    BufferPlan const& plan() const override { return gradients_.plan(); }
    std::span<float> buffer(int index) override { return gradients_.buffer(index); }
    void reduce(Consume const& consume) override;
    std::string name() const override { return "shared memory"; }

  private:
    HostGradients gradients_;
    TreeSum sum_;
    ElementRange mine_;
};

}  // namespace holdfast::parallel
