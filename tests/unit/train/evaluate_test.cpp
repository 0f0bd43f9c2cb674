// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "data/synthetic_images.hpp"
#include "support/small_training.hpp"

namespace holdfast::train {
namespace {

using parallel::Communicator;

/// The batch [begin, end) of the set in file order.
data::ReplicaBatch batch_of(data::ImageDataset const& set, std::int64_t begin, std::int64_t end) {
    data::ReplicaBatch batch;
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(set.shape().num_values()));
    std::vector<float> image(pixels.size());
    for (std::int64_t sample = begin; sample < end; ++sample) {
        set.read(sample, pixels);
        data::normalize(pixels, set.shape(), data::cifar10_normalization(), image);
        batch.images_NCHW.insert(batch.images_NCHW.end(), image.begin(), image.end());
        batch.labels_N.push_back(set.label(sample));
        batch.samples.push_back(sample);
    }
    return batch;
}

TEST(Evaluate, IsTheSumOverBatchesInFileOrder) {
    test::SmallNetwork small;
    Communicator const alone;
    for (std::int64_t size : {1, 7, 12, 23}) {
        data::TrainAndTest const sets = data::synthetic_datasets(size);
        data::ImageDataset const& set = *sets.train;
        for (std::int64_t batch_size : {1, 4, 6, 100}) {
            EvaluationSums expected;
            Replica replica(small.network, small.tensors);
            for (std::int64_t begin = 0; begin < size; begin += batch_size) {
                EvaluationSums const sums =
                    replica.evaluate(batch_of(set, begin, std::min(size, begin + batch_size)), set.shape());
                expected.loss += sums.loss;
                expected.correct += sums.correct;
            }
            for (int num_slots : {1, 2, 3}) {
                ReplicaSlots slots(small.network, small.tensors, num_slots, 1);
                EvaluationSums const sums =
                    collective_evaluate(alone, slots, set, data::cifar10_normalization(), batch_size).value();
                EXPECT_EQ(sums.count, size);
                EXPECT_EQ(sums.correct, expected.correct);
                EXPECT_EQ(sums.loss, expected.loss)
                    << size << " in batches of " << batch_size << ", slots " << num_slots;
            }
        }
    }
}

}  // namespace
}  // namespace holdfast::train
