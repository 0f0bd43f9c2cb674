// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_leaf.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/core/Tensor.h>

#include "train/gradient_copy.hpp"

namespace holdfast::train {
namespace {

std::span<float const> floats_of(at::Tensor const& tensor) {
    return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

cuda::LeafWrite leaf_write(GradientWrite write) {
    return write == GradientWrite::add ? cuda::LeafWrite::add : cuda::LeafWrite::overwrite;
}

std::size_t size_of_common(parallel::FloatRange a, parallel::FloatRange b) {
    std::size_t const begin = std::max(a.begin, b.begin);
    return std::max(std::min(a.end, b.end), begin) - begin;
}

}  // namespace

GradientLeaf::GradientLeaf(model::FlatLayout const& layout, ComputeDevice device,
                           std::span<parallel::FloatRange const> early_parts)
    : tail_begin_(layout.tail_begin), device_(device) {
    if (!device_.has_device_memory()) return;
    collected_ = cuda::DeviceFloats(layout.num_floats);
    one_ = cuda::DeviceFloats(1);
    float const one = 1.0f;
    cuda::copy(one_.data(), &one, sizeof one, *device_.stream);
    device_.stream->synchronize();
    if (early_parts.empty()) return;
    early_stream_.emplace(cuda::StreamPriority::high);
    for (parallel::FloatRange const range : early_parts) {
        EarlyPart& part = early_parts_.emplace_back(range);
        for (model::FlatTensor const& tensor : layout.parameters)
            part.num_values += size_of_common(range, {tensor.offset, tensor.offset + tensor.size});
    }
}

void GradientLeaf::begin(LeafTarget const& target) { target_ = target; }

void GradientLeaf::begin_values() {
    all_finite_ = true;
    if (!device_.has_device_memory()) return;
    pieces_.clear();
    sources_.clear();
    for (EarlyPart& part : early_parts_) part.num_missing = part.num_values;
    cuda::fill_with_zero(collected_.data() + tail_begin_, model::FlatLayout::tail_size, *device_.stream);
}

void GradientLeaf::write(at::Tensor const& values, std::size_t offset) {
    if (device_.has_device_memory()) {
        collect_later(values, offset);
        return;
    }
    std::span<float const> const source = floats_of(values);
    std::span<float> const target = target_.buffer.subspan(offset, source.size());
    bool const finite = target_.write == GradientWrite::add ? add_scaled(target, source, target_.weight)
                                                            : copy_scaled(target, source, target_.weight);
    all_finite_ = all_finite_ && finite;
}

void GradientLeaf::write_tail(at::Tensor const& loss, at::Tensor const& num_correct,
                              std::int64_t num_samples) {
    float const count = static_cast<float>(num_samples);
    if (device_.has_device_memory()) {
        cuda::Stream const& stream = *device_.stream;
        collect_later(loss, tail_begin_ + tail_loss);
        collect_later(num_correct.to(at::kFloat), tail_begin_ + tail_correct);
        collect();
        // Not a copy from the host, which would wait for the work in the stream.
        cuda::write_leaf(collected_.data() + tail_begin_ + tail_count, one_.data(), 1, count,
                         cuda::LeafWrite::overwrite, nullptr, stream);
        return;
    }
    std::span<float> const target = target_.buffer.subspan(tail_begin_, model::FlatLayout::tail_size);
    float const mean_loss = loss.item<float>();
    std::array<float, model::FlatLayout::tail_size> values{};
    values[tail_loss] = target_.weight * mean_loss;
    values[tail_correct] = static_cast<float>(num_correct.item<std::int64_t>());
    values[tail_count] = count;
    values[tail_not_finite] = all_finite_ && std::isfinite(mean_loss) ? 0.0f : 1.0f;
    for (std::size_t i = 0; i < values.size(); ++i)
        target[i] = target_.write == GradientWrite::add ? target[i] + values[i] : values[i];
}

void GradientLeaf::collect_later(at::Tensor const& values, std::size_t offset) {
    auto const size = static_cast<std::size_t>(values.numel());
    pieces_.push_back(
        {collected_.data() + offset, values.const_data_ptr(), size,
         values.scalar_type() == at::kBFloat16 ? cuda::PieceType::bfloat16 : cuda::PieceType::float32});
    sources_.push_back(values);
    for (EarlyPart& part : early_parts_) {
        std::size_t const num_new = size_of_common(part.range, {offset, offset + size});
        part.num_missing -= num_new;
        if (num_new == 0 || part.num_missing > 0) continue;
        collect();
        part.is_collected.record(*device_.stream);
    }
}

void GradientLeaf::collect() {
    cuda::write_pieces(pieces_, collected_.data() + tail_begin_ + tail_not_finite, *device_.stream);
    pieces_.clear();
    sources_.clear();
}

void GradientLeaf::write_collected(parallel::FloatRange range, float weight, cuda::Stream const& stream) {
    cuda::write_leaf(target_.buffer.data() + range.begin, collected_.data() + range.begin,
                     range.end - range.begin, weight, leaf_write(target_.write), nullptr, stream);
}

void GradientLeaf::end() {
    if (!device_.has_device_memory()) return;
    std::size_t rest_begin = 0;
    if (target_.exchange != nullptr)
        for (EarlyPart const& part : early_parts_) {
            part.is_collected.make_wait(*early_stream_);
            write_collected(part.range, target_.weight, *early_stream_);
            target_.exchange->early_part_written(*early_stream_);
            rest_begin = std::max(rest_begin, part.range.end);
        }
    static_assert(tail_loss == 0, "the loss is scaled with what comes before it");
    std::size_t const num_scaled = tail_begin_ + 1;
    write_collected({rest_begin, num_scaled}, target_.weight, *device_.stream);
    write_collected({num_scaled, collected_.size()}, 1.0f, *device_.stream);
}

void GradientLeaf::write_nothing() {
    std::span<float> const buffer = target_.buffer;
    if (device_.has_device_memory())
        cuda::write_leaf(buffer.data(), nullptr, buffer.size(), target_.weight, leaf_write(target_.write),
                         nullptr, *device_.stream);
    else if (target_.write == GradientWrite::overwrite)
        std::fill(buffer.begin(), buffer.end(), 0.0f);
    else
        for (float& value : buffer) value += 0.0f;  // -0 becomes +0, as it would beside a leaf of zeros
}

}  // namespace holdfast::train
