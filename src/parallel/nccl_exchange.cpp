// SPDX-License-Identifier: Apache-2.0
#include "parallel/nccl_exchange.hpp"

#include <algorithm>
#include <cassert>
#include <thread>

#include "parallel/host_gradients.hpp"

namespace holdfast::parallel {
namespace {

constexpr std::size_t cache_line_floats = 16;
constexpr std::size_t page_floats = 1024;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

/// Takes the adds out of the plan that come after its last replica.
std::vector<BufferPlan::Action> take_last_adds(BufferPlan& plan) {
    auto const first = std::find_if(plan.actions.rbegin(), plan.actions.rend(), [](auto const& action) {
                           return action.kind != BufferPlan::Kind::add;
                       }).base();
    std::vector<BufferPlan::Action> const adds(first, plan.actions.end());
    plan.actions.erase(first, plan.actions.end());
    return adds;
}

}  // namespace

NcclExchange::NcclExchange(Communicator const& communicator, ExchangeConfig const& config,
                           cuda::Stream const& stream, std::size_t bucket_floats)
    : rank_(communicator.rank()),
      num_ranks_(communicator.size()),
      reduction_(config.reduction),
      num_floats_(config.num_floats),
      stream_(stream),
      memory_plan_([&] {
          std::vector<BufferPlan> const plans = collective_plans(communicator, config);
          std::vector<ReplicaRange> sources;
          for (BufferPlan const& plan : plans) {
              num_nodes_.push_back(static_cast<int>(plan.partial_sums.size()));
              for (PartialSum const& sum : plan.partial_sums) sources.push_back({sum.begin, sum.end});
          }
          plan_ = plans[static_cast<std::size_t>(rank_)];
          last_adds_ = take_last_adds(plan_);
          order_.postfix = postfix_order(config.num_replicas, sources);
          make_buckets(bucket_floats, config.num_early_floats);
          return memory_plan(plans);
      }()),
      // A communicator of one takes a second and memory, and may fail, for nothing.
      nccl_(is_alone() ? nullptr : std::make_unique<NcclCommunicator>(communicator)),
      memory_(communicator, nccl_.get(), memory_plan_.size) {}

void NcclExchange::make_buckets(std::size_t bucket_floats, std::size_t num_early_floats) {
    std::size_t const unit = cache_line_floats * static_cast<std::size_t>(num_ranks_);
    std::size_t const full = round_up(std::max(bucket_floats, unit), unit);
    std::size_t const end = round_up(num_floats_, unit);
    for (std::size_t begin = 0; begin < end; begin += full) {
        buckets_.push_back({begin, std::min(full, end - begin)});
    }
    // The backward pass fills the early ones from their end.
    auto const late = std::find_if(buckets_.begin(), buckets_.end(), [&](Bucket const& bucket) {
        return bucket.begin + bucket.size > num_early_floats;
    });
    std::reverse(buckets_.begin(), late);
    if (is_alone()) return;
    for (auto bucket = buckets_.begin(); bucket != late; ++bucket)
        early_parts_.push_back({bucket->begin, bucket->begin + bucket->size});
}

NcclExchange::MemoryPlan NcclExchange::memory_plan(std::vector<BufferPlan> const& plans) const {
    Bucket const& largest = *std::ranges::max_element(buckets_, {}, &Bucket::size);
    int num_buffers = 0;
    int num_partial_sums = 0;
    int fewest_of_a_rank = num_nodes_.front();
    for (BufferPlan const& plan : plans) {
        int const of_rank = static_cast<int>(plan.partial_sums.size());
        num_buffers = std::max(num_buffers, plan.num_buffers);
        num_partial_sums += of_rank;
        fewest_of_a_rank = std::min(fewest_of_a_rank, of_rank);
    }
    std::size_t const num_received = static_cast<std::size_t>(num_partial_sums - fewest_of_a_rank);
    MemoryPlan memory;
    memory.num_floats = round_up(
        round_up(num_floats_, cache_line_floats * static_cast<std::size_t>(num_ranks_)), page_floats);
    memory.received_begin = is_alone() ? 0 : memory.num_floats;
    memory.buffers_begin =
        memory.received_begin +
        round_up(num_received * (largest.size / static_cast<std::size_t>(num_ranks_)), page_floats);
    memory.size = memory.buffers_begin + static_cast<std::size_t>(num_buffers) * memory.num_floats;
    return memory;
}

float* NcclExchange::buffer_data(int index) const {
    return memory_.data() + memory_plan_.buffers_begin +
           static_cast<std::size_t>(index) * memory_plan_.num_floats;
}

std::span<float> NcclExchange::buffer(int index) { return {buffer_data(index), num_floats_}; }

void NcclExchange::early_part_written(cuda::Stream const& stream) {
    assert(next_bucket_ < early_parts_.size());
    begin_next_bucket(stream);
}

void NcclExchange::reduce(Consume const& consume) {
    tell_waiting(false);
    while (next_bucket_ < buckets_.size()) begin_next_bucket(stream_);
    next_bucket_ = 0;
    gradient_is_written_.record(stream_);
    exchanged_.record(exchange_stream_);
    if (gradient_is_written_.is_reached()) tell_waiting(true);
    exchanged_.make_wait(stream_);
    consume(0, {sum(), num_floats_});
    done_.record(stream_);
}

void NcclExchange::begin_next_bucket(cuda::Stream const& stream) {
    Bucket const& bucket = buckets_[next_bucket_++];
    bucket_is_written_.record(stream);
    bucket_is_written_.make_wait(exchange_stream_);
    add_last_siblings(bucket);
    if (is_alone()) return;
    if (reduction_ == Reduction::exact)
        gather_exact_sum(bucket);
    else
        gather_fast_sum(bucket);
}

void NcclExchange::add_last_siblings(Bucket const& bucket) {
    for (BufferPlan::Action const& add : last_adds_) {
        float* const left = buffer_data(add.buffer) + bucket.begin;
        float const* const right = buffer_data(add.from_buffer) + bucket.begin;
        cuda::sum_in_order(left, {left, right}, {{0, 1, -1}}, bucket.size, exchange_stream_);
    }
}

void NcclExchange::gather_exact_sum(Bucket const& bucket) {
    std::size_t const chunk = bucket.size / static_cast<std::size_t>(num_ranks_);
    auto const chunk_of = [&](float* data, int owner) {
        return data + bucket.begin + static_cast<std::size_t>(owner) * chunk;
    };
    std::vector<float const*> sources;
    nccl_->group([&] {
        float* place = memory_.data() + memory_plan_.received_begin;
        for (int peer = 0; peer < num_ranks_; ++peer) {
            for (PartialSum const& partial : plan_.partial_sums) {
                float* const mine = chunk_of(buffer_data(partial.buffer), peer);
                if (peer == rank_)
                    sources.push_back(mine);
                else
                    nccl_->send(mine, chunk, peer, exchange_stream_);
            }
            for (int node = 0; peer != rank_ && node < num_nodes_[static_cast<std::size_t>(peer)]; ++node) {
                nccl_->receive(place, chunk, peer, exchange_stream_);
                sources.push_back(place);
                place += chunk;
            }
        }
    });
    float* const finished = chunk_of(sum(), rank_);
    cuda::sum_in_order(finished, sources, order_, chunk, exchange_stream_);
    nccl_->all_gather(finished, sum() + bucket.begin, chunk, exchange_stream_);
}

void NcclExchange::gather_fast_sum(Bucket const& bucket) {
    std::vector<float const*> sources;
    cuda::SumOrder in_turn;
    for (PartialSum const& partial : plan_.partial_sums) {
        in_turn.postfix.push_back(static_cast<std::int16_t>(sources.size()));
        if (!sources.empty()) in_turn.postfix.push_back(-1);
        sources.push_back(buffer_data(partial.buffer) + bucket.begin);
    }
    cuda::sum_in_order(sum() + bucket.begin, sources, in_turn, bucket.size, exchange_stream_);
    nccl_->all_reduce(sum() + bucket.begin, bucket.size, exchange_stream_);
}

void NcclExchange::wait() {
    bool is_waiting = false;
    tell_waiting(is_waiting);
    while (true) {
        bool const is_done = done_.is_reached();
        // After an error the GPU may never get there; what it computed, if it did, is not the sum.
        if (nccl_) nccl_->require_no_trouble();
        if (is_done) return;
        if (!is_waiting && gradient_is_written_.is_reached()) tell_waiting(is_waiting = true);
        std::this_thread::yield();
    }
}

}  // namespace holdfast::parallel
