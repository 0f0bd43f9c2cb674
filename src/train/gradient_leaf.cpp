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

}  // namespace

GradientLeaf::GradientLeaf(model::FlatLayout const& layout, ComputeDevice device)
    : tail_begin_(layout.tail_begin), device_(device) {
    if (!device_.has_device_memory()) return;
    collected_ = cuda::DeviceFloats(layout.num_floats);
    one_ = cuda::DeviceFloats(1);
    float const one = 1.0f;
    cuda::copy(one_.data(), &one, sizeof one, *device_.stream);
    device_.stream->synchronize();
}

void GradientLeaf::begin(std::span<float> buffer, float weight, GradientWrite write) {
    buffer_ = buffer;
    weight_ = weight;
    write_ = write;
    all_finite_ = true;
    if (device_.has_device_memory())
        cuda::fill_with_zero(collected_.data() + tail_begin_, model::FlatLayout::tail_size, *device_.stream);
}

void GradientLeaf::write(at::Tensor const& values, std::size_t offset) {
    std::span<float const> const source = floats_of(values);
    if (device_.has_device_memory()) {
        cuda::write_leaf(collected_.data() + offset, source.data(), source.size(), 1.0f,
                         cuda::LeafWrite::overwrite, collected_.data() + tail_begin_ + tail_not_finite,
                         *device_.stream);
        return;
    }
    std::span<float> const target = buffer_.subspan(offset, source.size());
    bool const finite = write_ == GradientWrite::add ? add_scaled(target, source, weight_)
                                                     : copy_scaled(target, source, weight_);
    all_finite_ = all_finite_ && finite;
}

void GradientLeaf::write_tail(at::Tensor const& loss, at::Tensor const& num_correct,
                              std::int64_t num_samples) {
    float const count = static_cast<float>(num_samples);
    if (device_.has_device_memory()) {
        cuda::Stream const& stream = *device_.stream;
        float* const tail = collected_.data() + tail_begin_;
        cuda::write_leaf(tail + tail_loss, floats_of(loss).data(), 1, 1.0f, cuda::LeafWrite::overwrite,
                         tail + tail_not_finite, stream);
        at::Tensor const correct = num_correct.to(at::kFloat);
        cuda::write_leaf(tail + tail_correct, floats_of(correct).data(), 1, 1.0f, cuda::LeafWrite::overwrite,
                         nullptr, stream);
        // Not a copy from the host, which would wait for the work in the stream.
        cuda::write_leaf(tail + tail_count, one_.data(), 1, count, cuda::LeafWrite::overwrite, nullptr,
                         stream);
        return;
    }
    std::span<float> const target = buffer_.subspan(tail_begin_, model::FlatLayout::tail_size);
    float const mean_loss = loss.item<float>();
    std::array<float, model::FlatLayout::tail_size> values{};
    values[tail_loss] = weight_ * mean_loss;
    values[tail_correct] = static_cast<float>(num_correct.item<std::int64_t>());
    values[tail_count] = count;
    values[tail_not_finite] = all_finite_ && std::isfinite(mean_loss) ? 0.0f : 1.0f;
    for (std::size_t i = 0; i < values.size(); ++i)
        target[i] = write_ == GradientWrite::add ? target[i] + values[i] : values[i];
}

void GradientLeaf::end() {
    if (!device_.has_device_memory()) return;
    static_assert(tail_loss == 0, "the loss is scaled with what comes before it");
    std::size_t const num_scaled = tail_begin_ + 1;
    cuda::write_leaf(buffer_.data(), collected_.data(), num_scaled, weight_, leaf_write(write_), nullptr,
                     *device_.stream);
    cuda::write_leaf(buffer_.data() + num_scaled, collected_.data() + num_scaled,
                     collected_.size() - num_scaled, 1.0f, leaf_write(write_), nullptr, *device_.stream);
}

void GradientLeaf::write_nothing() {
    if (device_.has_device_memory())
        cuda::write_leaf(buffer_.data(), nullptr, buffer_.size(), weight_, leaf_write(write_), nullptr,
                         *device_.stream);
    else if (write_ == GradientWrite::overwrite)
        std::fill(buffer_.begin(), buffer_.end(), 0.0f);
    else
        for (float& value : buffer_) value += 0.0f;  // -0 becomes +0, as it would beside a leaf of zeros
}

}  // namespace holdfast::train
