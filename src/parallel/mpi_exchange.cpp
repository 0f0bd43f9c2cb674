// SPDX-License-Identifier: Apache-2.0
#include "parallel/mpi_exchange.hpp"

#include <algorithm>

#include <mpi.h>

#include "parallel/communicator_state.hpp"
#include "parallel/mpi_check.hpp"

namespace holdfast::parallel {
namespace {

/// Round r + 1 starts before round r is finished, and the finished pieces of round r - 1 arrive meanwhile.
constexpr std::size_t rounds_in_flight = 3;

void wait_all(std::vector<MPI_Request>& requests) {
    mpi_check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
              "MPI_Waitall");
    requests.clear();
}

}  // namespace

struct MpiExchange::Host {
    int first_rank = 0;
    int num_ranks = 0;
    std::vector<ReplicaRange> nodes;
};

struct MpiExchange::Round {
    /// A piece that a rank of another host owns and this rank stands for here.
    struct Partnered {
        int owner = 0;
        ElementRange elements;
        std::vector<float> node_sums;  ///< to the owner, one node after the other
        std::vector<float> finished;   ///< from the owner
    };
    std::size_t number = 0;
    ElementRange owned;
    std::vector<float> received_nodes;  ///< from the other hosts, one node after the other
    std::vector<float> finished;
    std::vector<Partnered> partnered;
    std::size_t num_partnered = 0;  ///< used in this round
    std::vector<MPI_Request> node_receives;
    std::vector<MPI_Request> finished_receives;
    std::vector<MPI_Request> sends;
};

MpiExchange::~MpiExchange() = default;

MpiExchange::MpiExchange(Communicator const& communicator, ExchangeConfig const& config,
                         std::size_t piece_floats)
    : ranks_(communicator.state()),
      gradients_(communicator, config),
      num_floats_(config.num_floats),
      piece_floats_(piece_floats),
      hosts_([&] {
          std::vector<Host> hosts(static_cast<std::size_t>(ranks_.num_hosts));
          for (int rank = 0; rank < ranks_.size; ++rank) {
              Host& host =
                  hosts[static_cast<std::size_t>(ranks_.host_of_rank[static_cast<std::size_t>(rank)])];
              if (host.num_ranks++ == 0) host.first_rank = rank;
          }
          for (Host& host : hosts) {
              int const begin = replica_range(host.first_rank, ranks_.size, config.num_replicas).begin;
              int const end =
                  replica_range(host.first_rank + host.num_ranks - 1, ranks_.size, config.num_replicas).end;
              host.nodes = maximal_nodes(config.num_replicas, {begin, end});
          }
          return hosts;
      }()),
      whole_([&] {
          std::vector<ReplicaRange> sources = gradients_.partial_sums();
          for (int h = 0; h < ranks_.num_hosts; ++h) {
              if (h == communicator.host()) continue;
              std::vector<ReplicaRange> const& nodes = hosts_[static_cast<std::size_t>(h)].nodes;
              sources.insert(sources.end(), nodes.begin(), nodes.end());
          }
          return TreeSum(config.num_replicas, {0, config.num_replicas}, sources);
      }()) {
    for (int owner = 0; owner < ranks_.size; ++owner) {
        ElementRange const chunk = element_chunk(num_floats_, owner, ranks_.size);
        num_rounds_ = std::max(num_rounds_, (chunk.end - chunk.begin + piece_floats_ - 1) / piece_floats_);
    }
    std::size_t num_foreign_nodes = 0;
    for (Host const& host : hosts_) {
        max_nodes_ = std::max(max_nodes_, host.nodes.size());
        num_foreign_nodes += host.nodes.size();
    }
    Host const& mine = hosts_[static_cast<std::size_t>(communicator.host())];
    num_foreign_nodes -= mine.nodes.size();

    std::vector<ReplicaRange> const& partial_sums = gradients_.partial_sums();
    for (std::size_t i = 0; i < partial_sums.size(); ++i)
        whole_.set_source(static_cast<int>(i), gradients_.partial_sum_data(i));
    for (ReplicaRange const& node : mine.nodes) {
        std::vector<ReplicaRange> inside;
        std::vector<std::size_t> index;
        for (std::size_t i = 0; i < partial_sums.size(); ++i) {
            if (partial_sums[i].begin < node.begin || partial_sums[i].end > node.end) continue;
            inside.push_back(partial_sums[i]);
            index.push_back(i);
        }
        my_nodes_.emplace_back(config.num_replicas, node, inside);
        for (std::size_t i = 0; i < inside.size(); ++i)
            my_nodes_.back().set_source(static_cast<int>(i), gradients_.partial_sum_data(index[i]));
    }

    // Short gradients or many ranks: a piece is never larger than the largest chunk.
    std::size_t const largest_piece =
        std::min(piece_floats_, num_floats_ / static_cast<std::size_t>(ranks_.size) + 16);
    std::size_t max_partnered = 0;
    for (int round = 0; round < mine.num_ranks; ++round) {
        std::size_t count = 0;
        for (int owner = 0; owner < ranks_.size; ++owner) {
            int const owner_host = ranks_.host_of_rank[static_cast<std::size_t>(owner)];
            if (owner_host != communicator.host() &&
                partner(communicator.host(), owner, static_cast<std::size_t>(round)) == ranks_.rank)
                ++count;
        }
        max_partnered = std::max(max_partnered, count);
    }
    rounds_.resize(std::min(rounds_in_flight, num_rounds_));
    for (Round& round : rounds_) {
        round.received_nodes.resize(num_foreign_nodes * largest_piece);
        round.finished.resize(largest_piece);
        round.partnered.resize(max_partnered);
        for (Round::Partnered& partnered : round.partnered) {
            partnered.node_sums.resize(my_nodes_.size() * largest_piece);
            partnered.finished.resize(largest_piece);
        }
    }
}

ElementRange MpiExchange::piece(int owner, std::size_t round) const {
    ElementRange const chunk = element_chunk(num_floats_, owner, ranks_.size);
    std::size_t const begin = std::min(chunk.begin + round * piece_floats_, chunk.end);
    return {begin, std::min(begin + piece_floats_, chunk.end)};
}

/// The rank of `host` that stands for it on this piece: in turn.
int MpiExchange::partner(int host, int owner, std::size_t round) const {
    Host const& h = hosts_[static_cast<std::size_t>(host)];
    return h.first_rank + static_cast<int>((static_cast<std::size_t>(owner) + round) %
                                           static_cast<std::size_t>(h.num_ranks));
}

/// Two ranks may be owner and partner for each other in one round; node sums go one way, tag max_nodes_ is
/// the way back.
int MpiExchange::tag(std::size_t round, std::size_t node) const {
    return static_cast<int>(round * (max_nodes_ + 1) + node);
}

void MpiExchange::start(Round& round, std::size_t number) {
    int const me = ranks_.rank;
    int const my_host = ranks_.host_of_rank[static_cast<std::size_t>(me)];
    round.number = number;
    round.owned = piece(me, number);
    auto const send = [&](float const* data, std::size_t count, int to, std::size_t node) {
        mpi_check(MPI_Isend(data, static_cast<int>(count), MPI_FLOAT, to, tag(number, node), ranks_.all,
                            &round.sends.emplace_back()),
                  "MPI_Isend");
    };
    auto const receive = [&](float* data, std::size_t count, int from, std::size_t node,
                             std::vector<MPI_Request>& to) {
        mpi_check(MPI_Irecv(data, static_cast<int>(count), MPI_FLOAT, from, tag(number, node), ranks_.all,
                            &to.emplace_back()),
                  "MPI_Irecv");
    };

    if (std::size_t const count = round.owned.end - round.owned.begin; count > 0) {
        float* place = round.received_nodes.data();
        for (int h = 0; h < ranks_.num_hosts; ++h) {
            if (h == my_host) continue;
            for (std::size_t node = 0; node < hosts_[static_cast<std::size_t>(h)].nodes.size(); ++node) {
                receive(place, count, partner(h, me, number), node, round.node_receives);
                place += count;
            }
        }
    }
    round.num_partnered = 0;
    // Each rank begins with another owner, so that not all send to rank 0 first.
    for (int distance = 1; distance < ranks_.size; ++distance) {
        int const owner = (me + distance) % ranks_.size;
        if (ranks_.host_of_rank[static_cast<std::size_t>(owner)] == my_host) continue;
        if (partner(my_host, owner, number) != me) continue;
        ElementRange const elements = piece(owner, number);
        std::size_t const count = elements.end - elements.begin;
        if (count == 0) continue;
        Round::Partnered& partnered = round.partnered[round.num_partnered++];
        partnered.owner = owner;
        partnered.elements = elements;
        receive(partnered.finished.data(), count, owner, max_nodes_, round.finished_receives);
        for (std::size_t node = 0; node < my_nodes_.size(); ++node) {
            TreeSum& sum = my_nodes_[node];
            if (sum.is_source()) {  // lies in memory as it is
                send(sum.block(elements.begin, 0).data(), count, owner, node);
                continue;
            }
            float* const place = partnered.node_sums.data() + node * count;
            for (std::size_t done = 0; done < count;) {
                std::size_t const block = std::min(TreeSum::max_block_floats, count - done);
                sum.block(elements.begin + done, block, place + done);
                done += block;
            }
            send(place, count, owner, node);
        }
    }
}

void MpiExchange::finish_owned(Round& round, Consume const& consume) {
    wait_all(round.node_receives);
    std::size_t const begin = round.owned.begin;
    std::size_t const count = round.owned.end - begin;
    if (count == 0) return;
    std::size_t const num_local = gradients_.partial_sums().size();
    std::size_t const num_foreign = whole_.num_sources() - num_local;
    for (std::size_t i = 0; i < num_foreign; ++i)
        whole_.set_source(static_cast<int>(num_local + i), round.received_nodes.data() + i * count, begin);
    for (std::size_t done = 0; done < count;) {
        std::size_t const block = std::min(TreeSum::max_block_floats, count - done);
        consume(begin + done, whole_.block(begin + done, block, round.finished.data() + done));
        done += block;
    }
    int const me = ranks_.rank;
    int const my_host = ranks_.host_of_rank[static_cast<std::size_t>(me)];
    for (int distance = 1; distance < ranks_.num_hosts; ++distance) {
        int const to = partner((my_host + distance) % ranks_.num_hosts, me, round.number);
        mpi_check(MPI_Isend(round.finished.data(), static_cast<int>(count), MPI_FLOAT, to,
                            tag(round.number, max_nodes_), ranks_.all, &round.sends.emplace_back()),
                  "MPI_Isend");
    }
}

void MpiExchange::finish_partnered(Round& round, Consume const& consume) {
    for (std::size_t i = 0; i < round.num_partnered; ++i) {
        Round::Partnered const& partnered = round.partnered[i];
        mpi_check(MPI_Wait(&round.finished_receives[i], MPI_STATUS_IGNORE), "MPI_Wait");
        consume(partnered.elements.begin,
                std::span(partnered.finished).first(partnered.elements.end - partnered.elements.begin));
    }
    round.finished_receives.clear();
    wait_all(round.sends);
}

void MpiExchange::reduce(Consume const& consume) {
    // Moves what MPI still has to send for this rank while it waits for the other ranks of its host.
    auto const progress = [&] {
        int found = 0;
        mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ranks_.all, &found, MPI_STATUS_IGNORE),
                  "MPI_Iprobe");
    };
    auto const in_flight = [&](std::size_t round) -> Round& { return rounds_[round % rounds_.size()]; };
    gradients_.barrier().wait(progress);
    if (num_rounds_ > 0) start(in_flight(0), 0);
    for (std::size_t round = 0; round < num_rounds_; ++round) {
        if (round + 1 < num_rounds_) start(in_flight(round + 1), round + 1);
        finish_owned(in_flight(round), consume);
        if (round > 0) finish_partnered(in_flight(round - 1), consume);
    }
    if (num_rounds_ > 0) finish_partnered(in_flight(num_rounds_ - 1), consume);
    gradients_.barrier().wait(progress);
}

}  // namespace holdfast::parallel
