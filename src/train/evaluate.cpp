// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <vector>

namespace holdfast::train {
namespace {

data::ReplicaBatch read_batch(data::ImageDataset const& dataset, data::Normalization const& normalization,
                              std::int64_t begin, std::int64_t end) {
    data::ReplicaBatch batch;
    std::size_t const values = static_cast<std::size_t>(dataset.shape().num_values());
    std::vector<std::uint8_t> pixels_CHW(values);
    batch.images_NCHW.resize(static_cast<std::size_t>(end - begin) * values);
    for (std::int64_t sample = begin; sample < end; ++sample) {
        std::span<float> const image =
            std::span(batch.images_NCHW).subspan(static_cast<std::size_t>(sample - begin) * values, values);
        dataset.read(sample, pixels_CHW);
        data::normalize(pixels_CHW, dataset.shape(), normalization, image);
        batch.labels_N.push_back(dataset.label(sample));
        batch.samples.push_back(sample);
    }
    return batch;
}

}  // namespace

EvaluationSums collective_evaluate(parallel::Communicator const& communicator, ReplicaSlots& slots,
                                   data::ImageDataset const& test, data::Normalization const& normalization,
                                   std::int64_t batch_size) {
    std::int64_t const num_batches = (test.size() + batch_size - 1) / batch_size;
    std::vector<EvaluationSums> mine;  // of batches rank, rank + P, ...
    for (std::int64_t batch = communicator.rank(); batch < num_batches; batch += communicator.size())
        mine.emplace_back();
    communicator.agree([&] {
        for (std::size_t first = 0; first < mine.size(); first += static_cast<std::size_t>(slots.size())) {
            std::size_t const end = std::min(mine.size(), first + static_cast<std::size_t>(slots.size()));
            for (std::size_t i = first; i < end; ++i) {
                std::int64_t const batch =
                    communicator.rank() + static_cast<std::int64_t>(i) * communicator.size();
                slots.start(static_cast<int>(i - first), [&, i, batch](Replica& replica) {
                    std::int64_t const begin = batch * batch_size;
                    mine[i] = replica.evaluate(
                        read_batch(test, normalization, begin, std::min(test.size(), begin + batch_size)),
                        test.shape());
                });
            }
            slots.wait();
        }
    });

    std::vector<std::string> const all = communicator.all_gather(
        std::string(reinterpret_cast<char const*>(mine.data()), mine.size() * sizeof(EvaluationSums)));
    EvaluationSums total;
    for (std::int64_t batch = 0; batch < num_batches; ++batch) {
        EvaluationSums sums;
        std::string const& of_rank = all[static_cast<std::size_t>(batch % communicator.size())];
        std::memcpy(&sums,
                    of_rank.data() + static_cast<std::size_t>(batch / communicator.size()) * sizeof(sums),
                    sizeof(sums));
        total.loss += sums.loss;
        total.correct += sums.correct;
        total.count += sums.count;
    }
    assert(total.count == test.size());
    return total;
}

}  // namespace holdfast::train
