// SPDX-License-Identifier: Apache-2.0
#include "model/flat_layout.hpp"

#include <functional>
#include <utility>

namespace holdfast::model {
namespace {

/// BatchNorm's parameters and biases have one dimension; they are not to become small.
bool decays(FlatTensor const& tensor) { return tensor.shape.size() > 1; }

/// Gives each tensor of which `is_meant` says so the next 64-byte aligned place, and returns the end of the last.
std::size_t place(std::vector<FlatTensor>& tensors, std::size_t begin, auto is_meant) {
    for (FlatTensor& tensor : tensors) {
        if (!is_meant(tensor)) continue;
        tensor.size = 1;
        for (std::int64_t const extent : tensor.shape) tensor.size *= static_cast<std::size_t>(extent);
        tensor.offset = begin;
        begin += (tensor.size + 15) / 16 * 16;
    }
    return begin;
}

}  // namespace

std::int64_t FlatLayout::num_parameters() const {
    std::int64_t total = 0;
    for (FlatTensor const& tensor : parameters) total += static_cast<std::int64_t>(tensor.size);
    return total;
}

FlatLayout make_flat_layout(std::vector<FlatTensor> parameters, std::vector<FlatTensor> running_means,
                            std::vector<FlatTensor> running_variances) {
    FlatLayout layout;
    layout.parameters = std::move(parameters);
    layout.running_means = std::move(running_means);
    layout.running_variances = std::move(running_variances);
    auto const all = [](FlatTensor const&) { return true; };
    layout.decaying_end = place(layout.parameters, 0, decays);
    layout.means_begin = place(layout.parameters, layout.decaying_end, std::not_fn(decays));
    layout.variances_begin = place(layout.running_means, layout.means_begin, all);
    layout.tail_begin = place(layout.running_variances, layout.variances_begin, all);
    layout.num_floats = layout.tail_begin + FlatLayout::tail_size;
    return layout;
}

}  // namespace holdfast::model
