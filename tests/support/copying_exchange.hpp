// SPDX-License-Identifier: Apache-2.0
// An exchange of one rank that only looks at the parts of a leaf that it could send early.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cuda/device_runtime.hpp"
#include "parallel/gradient_exchange.hpp"

namespace holdfast::test {

/// Copies each early part in the stream it is told, as it then is.
class CopyingExchange : public parallel::GradientExchange {
  public:
    CopyingExchange(std::vector<parallel::FloatRange> parts, std::size_t num_floats)
        : copied(num_floats), parts_(std::move(parts)), leaf_(num_floats) {}

    parallel::BufferPlan const& plan() const override { return plan_; }
    std::span<float> buffer(int) override { return {leaf_.data(), leaf_.size()}; }
    void reduce(parallel::Consume const&) override {}
    std::string name() const override { return "copying"; }
    std::span<parallel::FloatRange const> early_parts() const override { return parts_; }
    void early_part_written(cuda::Stream const& stream) override {
        parallel::FloatRange const part = parts_.at(num_told++);
        cuda::copy(copied.data() + part.begin, leaf_.data() + part.begin,
                   (part.end - part.begin) * sizeof(float), stream);
        told_in = &stream;
    }

    cuda::DeviceFloats copied;
    std::size_t num_told = 0;
    cuda::Stream const* told_in = nullptr;

  private:
    parallel::BufferPlan plan_;
    std::vector<parallel::FloatRange> parts_;
    cuda::DeviceFloats leaf_;
};

}  // namespace holdfast::test
