// SPDX-License-Identifier: Apache-2.0
#include "parallel/host_gradients.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "parallel/communicator_state.hpp"

namespace holdfast::parallel {
namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t cache_line_floats = 16;

}  // namespace

std::vector<BufferPlan> collective_plans(Communicator const& communicator, ExchangeConfig const& config) {
    require(config.num_floats % cache_line_floats == 0 && config.slots >= 1, ExitCode::internal_error,
            "an exchange of {} floats with {} slots (it needs a multiple of {}, and a slot)",
            config.num_floats, config.slots, cache_line_floats);
    std::vector<std::string> const ranks = communicator.all_gather(fmt::format(
        "{} replicas, {} floats, slots {}", config.num_replicas, config.num_floats, config.slots));
    std::vector<int> slots;
    std::vector<ReplicaRange> ranges;
    for (int r = 0; r < communicator.size(); ++r) {
        std::string const& text = ranks[static_cast<std::size_t>(r)];
        std::size_t const number = text.rfind(' ') + 1;
        require(text.compare(0, number, ranks[0], 0, number) == 0, ExitCode::internal_error,
                "ranks 0 and {} exchange different gradients: '{}' and '{}'", r, ranks[0], text);
        slots.push_back(std::stoi(text.substr(number)));
        ranges.push_back(replica_range(r, communicator.size(), config.num_replicas));
    }
    // Adding siblings before the exchange only saves memory: the exchange reads all leaves in one pass
    // anyway.
    bool all_fit = true;
    for (std::size_t r = 0; r < ranges.size(); ++r) all_fit = all_fit && ranges[r].size() <= slots[r];
    std::vector<BufferPlan> plans;
    for (std::size_t r = 0; r < ranges.size(); ++r)
        plans.push_back(
            make_buffer_plan(config.num_replicas, ranges[r], slots[r], all_fit ? Merge::none : Merge::early));
    return plans;
}

HostGradients::HostGradients(Communicator const& communicator, ExchangeConfig const& config)
    : rank_(communicator.rank()),
      first_rank_(communicator.rank() - communicator.local_rank()),
      num_floats_(config.num_floats),
      buffer_stride_floats_((config.num_floats * sizeof(float) + page_bytes - 1) / page_bytes * page_bytes /
                            sizeof(float)),
      plans_(collective_plans(communicator, config)),
      memory_([&] {
          std::size_t num_buffers = 0;
          for (int local = 0; local < communicator.local_size(); ++local) {
              BufferPlan const& plan = plans_[static_cast<std::size_t>(first_rank_ + local)];
              first_buffer_.push_back(num_buffers);
              num_buffers += static_cast<std::size_t>(plan.num_buffers);
              for (PartialSum const& sum : plan.partial_sums) partial_sums_.push_back({sum.begin, sum.end});
          }
          // The barrier has the first page.
          return HostSharedMemory::collective_allocate(
              communicator, page_bytes + num_buffers * buffer_stride_floats_ * sizeof(float));
      }()),
      barrier_(reinterpret_cast<HostBarrier::Words*>(memory_.bytes().data()), communicator.local_size()) {
    for (int local = 0; local < communicator.local_size(); ++local)
        for (PartialSum const& sum : plans_[static_cast<std::size_t>(first_rank_ + local)].partial_sums)
            partial_sum_data_.push_back(buffer_of(first_rank_ + local, sum.buffer).data());
}

std::span<float> HostGradients::buffer(int index) const { return buffer_of(rank_, index); }

std::span<float> HostGradients::buffer_of(int rank, int index) const {
    std::size_t const number =
        first_buffer_[static_cast<std::size_t>(rank - first_rank_)] + static_cast<std::size_t>(index);
    return memory_.floats().subspan(page_bytes / sizeof(float) + number * buffer_stride_floats_, num_floats_);
}

ElementRange element_chunk(std::size_t num_floats, int index, int num_parts) {
    std::size_t const lines = num_floats / cache_line_floats;
    auto const begin = [&](int i) {
        return lines * static_cast<std::size_t>(i) / static_cast<std::size_t>(num_parts) * cache_line_floats;
    };
    return {begin(index), begin(index + 1)};
}

}  // namespace holdfast::parallel
