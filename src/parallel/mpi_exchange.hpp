// SPDX-License-Identifier: Apache-2.0
// The exchange between hosts. Every rank owns a chunk of the elements and finishes the tree there; for each
// piece of it one rank of every other host is the owner's partner: it adds up its host's part of the tree,
// sends that, and gets the finished piece back, which it consumes for its host. So the ranks of a host share
// the work evenly, however unlike the hosts are, and the bytes on the wire are those of a ring when every
// host's replicas form a whole node of the tree.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "parallel/gradient_exchange.hpp"
#include "parallel/host_gradients.hpp"

namespace holdfast::parallel {

class MpiExchange : public GradientExchange {
  public:
    /// 1 MB: against MPI_Allreduce, the best of 32 KB to 4 MB at 2 and 4 ranks on one machine, each a host of
    /// its own (benchmarks/exchange).
    static constexpr std::size_t default_piece_floats = std::size_t{1} << 18;

    /// Collective. Keeps a reference to the communicator's handles, so the communicator must live longer.
    MpiExchange(Communicator const& communicator, ExchangeConfig const& config,
                std::size_t piece_floats = default_piece_floats);
    ~MpiExchange() override;

    BufferPlan const& plan() const override { return gradients_.plan(); }
    std::span<float> buffer(int index) override { return gradients_.buffer(index); }
    void reduce(Consume const& consume) override;
    std::string name() const override { return "MPI"; }

  private:
    struct Host;
    struct Round;

    ElementRange piece(int owner, std::size_t round) const;
    int partner(int host, int owner, std::size_t round) const;
    int tag(std::size_t round, std::size_t node) const;
    void start(Round& round, std::size_t number);
    void finish_owned(Round& round, Consume const& consume);
    void finish_partnered(Round& round, Consume const& consume);

    Communicator::State const& ranks_;
    HostGradients gradients_;
    std::size_t num_floats_;
    std::size_t piece_floats_;
    std::size_t num_rounds_ = 0;
    std::size_t max_nodes_ = 0;  ///< of any host
    std::vector<Host> hosts_;
    std::vector<TreeSum> my_nodes_;  ///< the part of the tree inside this host
    TreeSum whole_;                  ///< this host's partial sums, then the other hosts' nodes
    std::vector<Round> rounds_;      ///< in flight
};

}  // namespace holdfast::parallel
