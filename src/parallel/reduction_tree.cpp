// SPDX-License-Identifier: Apache-2.0
#include "parallel/reduction_tree.hpp"

#include <algorithm>
#include <cassert>

namespace holdfast::parallel {
namespace {

int middle(int begin, int end) { return begin + (end - begin) / 2; }

bool is_node(int num_replicas, int begin, int end) {
    int lo = 0;
    int hi = num_replicas;
    while (lo != begin || hi != end) {
        if (hi - lo <= 1) return false;
        int const mid = middle(lo, hi);
        if (end <= mid) {
            hi = mid;
        } else if (begin >= mid) {
            lo = mid;
        } else {
            return false;
        }
    }
    return true;
}

/// Whether [left, mid) and [mid, right) are the two halves of one node.
bool are_siblings(int num_replicas, int left, int mid, int right) {
    return mid == middle(left, right) && is_node(num_replicas, left, right);
}

void collect_maximal_nodes(int lo, int hi, ReplicaRange range, std::vector<ReplicaRange>& nodes) {
    if (hi <= range.begin || lo >= range.end) return;
    if (lo >= range.begin && hi <= range.end) {
        nodes.push_back({lo, hi});
        return;
    }
    collect_maximal_nodes(lo, middle(lo, hi), range, nodes);
    collect_maximal_nodes(middle(lo, hi), hi, range, nodes);
}

void add(float* __restrict out, float const* __restrict left, float const* __restrict right,
         std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = left[i] + right[i];
}

}  // namespace

BufferPlan make_buffer_plan(int num_replicas, ReplicaRange range, int slots, Merge merge) {
    using Kind = BufferPlan::Kind;
    BufferPlan plan;
    std::vector<PartialSum>& sums = plan.partial_sums;
    std::vector<int> free_buffers;
    auto const take_buffer = [&] {
        if (free_buffers.empty()) return plan.num_buffers++;
        int const buffer = free_buffers.back();
        free_buffers.pop_back();
        return buffer;
    };
    auto const add_finished_siblings = [&] {
        while (merge == Merge::early && sums.size() >= 2) {
            PartialSum& left = sums[sums.size() - 2];
            PartialSum const right = sums.back();
            if (!are_siblings(num_replicas, left.begin, right.begin, right.end)) return;
            plan.actions.push_back({Kind::add, 0, left.buffer, right.buffer});
            free_buffers.push_back(right.buffer);
            left.end = right.end;
            sums.pop_back();
        }
    };
    for (int replica = range.begin; replica < range.end;) {
        int const wave = std::min(slots, range.end - replica);
        // Alone in its wave, a right leaf goes straight into its left sibling and needs no buffer.
        if (merge == Merge::early && wave == 1 && !sums.empty() &&
            are_siblings(num_replicas, sums.back().begin, replica, replica + 1)) {
            plan.actions.push_back({Kind::run_and_add, replica, sums.back().buffer, 0});
            plan.actions.push_back({Kind::end_of_wave, 0, 0, 0});
            sums.back().end = ++replica;
            add_finished_siblings();
            continue;
        }
        std::vector<PartialSum> leaves;
        for (int i = 0; i < wave; ++i) {
            leaves.push_back({replica + i, replica + i + 1, take_buffer()});
            plan.actions.push_back({Kind::run, replica + i, leaves.back().buffer, 0});
        }
        plan.actions.push_back({Kind::end_of_wave, 0, 0, 0});
        for (PartialSum const& leaf : leaves) {
            sums.push_back(leaf);
            add_finished_siblings();
        }
        replica += wave;
    }
    return plan;
}

std::vector<ReplicaRange> maximal_nodes(int num_replicas, ReplicaRange range) {
    std::vector<ReplicaRange> nodes;
    collect_maximal_nodes(0, num_replicas, range, nodes);
    return nodes;
}

std::vector<std::int16_t> postfix_order(int num_replicas, std::vector<ReplicaRange> const& sources) {
    std::vector<std::int16_t> order;
    auto const append = [&](auto const& self, int lo, int hi) -> void {
        auto const source = std::ranges::find(sources, ReplicaRange{lo, hi});
        if (source != sources.end()) {
            order.push_back(static_cast<std::int16_t>(source - sources.begin()));
            return;
        }
        assert(hi - lo > 1);
        self(self, lo, middle(lo, hi));
        self(self, middle(lo, hi), hi);
        order.push_back(-1);
    };
    append(append, 0, num_replicas);
    return order;
}

TreeSum::TreeSum(int num_replicas, ReplicaRange node, std::vector<ReplicaRange> const& sources)
    : sources_(sources.size()) {
    assert(is_node(num_replicas, node.begin, node.end));
    static_cast<void>(num_replicas);
    int const num_sources = static_cast<int>(sources.size());
    int num_intermediate = 0;
    std::vector<int> free_places;
    auto const compile = [&](auto const& self, int lo, int hi) -> int {
        auto const source = std::ranges::find(sources, ReplicaRange{lo, hi});
        if (source != sources.end()) return static_cast<int>(source - sources.begin());
        assert(hi - lo > 1);
        int const left = self(self, lo, middle(lo, hi));
        int const right = self(self, middle(lo, hi), hi);
        // Taken before the operands' places are given back: add() may not write over what it reads.
        int result = num_sources + num_intermediate;
        if (free_places.empty()) {
            ++num_intermediate;
        } else {
            result = free_places.back();
            free_places.pop_back();
        }
        adds_.push_back({left, right, result});
        for (int const operand : {left, right})
            if (operand >= num_sources) free_places.push_back(operand);
        return result;
    };
    compile(compile, node.begin, node.end);
    intermediate_.resize(static_cast<std::size_t>(num_intermediate) * max_block_floats);
}

void TreeSum::set_source(int index, float const* data, std::size_t first_element) {
    sources_[static_cast<std::size_t>(index)] = {data, first_element};
}

std::span<float const> TreeSum::block(std::size_t offset, std::size_t count, float* out) {
    assert(count <= max_block_floats);
    auto const operand = [&](int index) -> float const* {
        std::size_t const i = static_cast<std::size_t>(index);
        if (i < sources_.size()) return sources_[i].data + (offset - sources_[i].first_element);
        return intermediate_.data() + (i - sources_.size()) * max_block_floats;
    };
    if (adds_.empty()) {
        float const* const whole = operand(0);
        if (out == nullptr) return {whole, count};
        std::copy_n(whole, count, out);
        return {out, count};
    }
    float* result = nullptr;
    for (Add const& step : adds_) {
        bool const is_last = &step == &adds_.back();
        result = is_last && out != nullptr ? out : const_cast<float*>(operand(step.result));
        add(result, operand(step.left), operand(step.right), count);
    }
    return {result, count};
}

}  // namespace holdfast::parallel
