// SPDX-License-Identifier: Apache-2.0
// What an exchange takes while the backward pass still runs. (That a whole leaf has the right bits: replica_test.cpp.)
#include "train/gradient_leaf.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include "cuda/deferred_host_streams.hpp"
#include "support/copying_exchange.hpp"

namespace holdfast::train {
namespace {

/// Tensors of 5 and 40 floats that decay, one of 3 that does not; all but the second leave padding.
model::FlatLayout three_tensors() {
    return model::make_flat_layout(
        {{"a.weight", {5, 1, 1, 1}, 0, 0}, {"b.weight", {40, 1, 1, 1}, 0, 0}, {"b.bias", {3}, 0, 0}}, {}, {});
}

std::vector<float> counting_from(float first, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
    return values;
}

class EarlyParts : public testing::Test {
  protected:
    cuda::DeferredHostStreams deferred_;
    cuda::Stream backward_;
    model::FlatLayout layout_ = three_tensors();
    test::CopyingExchange exchange_{{{32, 64}, {0, 32}}, layout_.num_floats};
    GradientLeaf leaf_{layout_, {.stream = &backward_}, exchange_.early_parts()};
    std::vector<std::vector<float>> values_;  ///< until their copies are made

    void begin(LeafTarget const& target) {
        leaf_.begin(target);
        leaf_.begin_values();
    }
    void write(std::size_t tensor, float first) {
        model::FlatTensor const& place = layout_.parameters[tensor];
        values_.push_back(counting_from(first, place.size));
        leaf_.write(at::from_blob(values_.back().data(), {static_cast<std::int64_t>(place.size)}),
                    place.offset);
    }
    void write_tail() {
        static at::Tensor const loss = at::scalar_tensor(2.0);
        static at::Tensor const correct = at::scalar_tensor(1.0);
        leaf_.write_tail(loss, correct, 1);
    }
};

TEST_F(EarlyParts, AreWhatTheLeafHoldsInTheEnd) {
    ASSERT_EQ(layout_.parameters[1].offset, 16u);
    for (float const weight : {0.5f, 0.25f}) {
        exchange_.num_told = 0;
        begin({exchange_.buffer(0), weight, GradientWrite::overwrite, &exchange_});
        write(2, 300 * weight);
        write(1, 200 * weight);
        write(0, 100 * weight);
        write_tail();
        leaf_.end();
        EXPECT_EQ(exchange_.num_told, 2u);
        EXPECT_EQ(exchange_.copied.data()[16], weight == 0.5f ? 0.0f : 50.0f) << "nobody has waited yet";
        exchange_.told_in->synchronize();
        std::vector<float> const early(exchange_.copied.data(), exchange_.copied.data() + 64);
        backward_.synchronize();
        std::span<float const> const leaf = exchange_.buffer(0);
        EXPECT_TRUE(std::ranges::equal(early, leaf.first(64)));
        for (std::size_t i = 0; i < 40; ++i)
            EXPECT_EQ(leaf[16 + i], weight * (200 * weight + static_cast<float>(i)));
        EXPECT_EQ(leaf[layout_.parameters[2].offset], weight * 300 * weight);
        EXPECT_EQ(leaf[layout_.tail_begin + tail_loss], weight * 2);
        EXPECT_EQ(leaf[layout_.tail_begin + tail_count], 1.0f);
    }
}

TEST_F(EarlyParts, DoNotWaitForWhatComesLater) {
    begin({exchange_.buffer(0), 1.0f, GradientWrite::overwrite, &exchange_});
    write(1, 200);
    write(0, 100);
    std::vector<float> const last = counting_from(7, 3);
    cuda::DeviceFloats const later(3);
    cuda::copy(later.data(), last.data(), 3 * sizeof(float), backward_);
    write(2, 300);
    write_tail();
    leaf_.end();
    exchange_.told_in->synchronize();
    EXPECT_EQ(exchange_.copied.data()[16], 200.0f);
    EXPECT_EQ(later.data()[0], 0.0f) << "all of the backward pass was waited for";
    backward_.synchronize();
}

TEST_F(EarlyParts, AreAddedToWhatIsThere) {
    std::vector<float> const old = counting_from(1000, layout_.num_floats);
    cuda::copy(exchange_.buffer(0).data(), old.data(), old.size() * sizeof(float), backward_);
    begin({exchange_.buffer(0), 1.0f, GradientWrite::add, &exchange_});
    for (std::size_t tensor : {2u, 1u, 0u}) write(tensor, 100.0f * static_cast<float>(tensor + 1));
    write_tail();
    leaf_.end();
    exchange_.told_in->synchronize();
    EXPECT_EQ(exchange_.copied.data()[16], 1016.0f + 200.0f);
    EXPECT_EQ(exchange_.copied.data()[63], 1063.0f) << "padding";
    backward_.synchronize();
}

/// A recording that fails has queued nothing.
TEST_F(EarlyParts, AreOfTheLastTimeIfValuesComeAgain) {
    for (std::size_t num_written : {1u, 2u, 3u}) {
        exchange_.num_told = 0;
        begin({exchange_.buffer(0), 1.0f, GradientWrite::overwrite, &exchange_});
        for (std::size_t tensor = 3; tensor > 3 - num_written;) write(--tensor, std::nanf(""));
        leaf_.begin_values();
        for (std::size_t tensor : {2u, 1u, 0u}) write(tensor, 100.0f * static_cast<float>(num_written));
        write_tail();
        leaf_.end();
        exchange_.told_in->synchronize();
        EXPECT_EQ(exchange_.copied.data()[0], 100.0f * static_cast<float>(num_written));
        EXPECT_EQ(exchange_.copied.data()[16], 100.0f * static_cast<float>(num_written));
        backward_.synchronize();
        EXPECT_EQ(exchange_.buffer(0)[layout_.tail_begin + tail_not_finite], 0.0f) << num_written;
    }
}

TEST_F(EarlyParts, AreToldOfTheLastLeafOnly) {
    begin({exchange_.buffer(0)});
    for (std::size_t tensor : {2u, 1u, 0u}) write(tensor, 1.0f);
    write_tail();
    leaf_.end();
    begin({exchange_.buffer(0), 0.0f, GradientWrite::add, &exchange_});
    leaf_.write_nothing();
    EXPECT_EQ(exchange_.num_told, 0u);
    backward_.synchronize();
    EXPECT_EQ(exchange_.buffer(0)[16], 1.0f);
}

}  // namespace
}  // namespace holdfast::train
