// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace holdfast::train {
namespace {

data::ReplicaBatch read_batch(data::ImageDataset const& dataset, data::Normalization const& normalization,
                              std::int64_t begin, std::int64_t end, data::DeviceImages* on_device) {
    data::StepBatch step;
    data::ReplicaBatch& batch = step.replicas.emplace_back();
    for (std::int64_t sample = begin; sample < end; ++sample) {
        batch.labels_N.push_back(dataset.label(sample));
        batch.samples.push_back(sample);
    }
    if (on_device != nullptr) {
        on_device->send(step);
        return batch;
    }
    std::size_t const values = static_cast<std::size_t>(dataset.shape().num_values());
    std::vector<std::uint8_t> pixels_CHW(values);
    batch.images_NCHW.resize(static_cast<std::size_t>(end - begin) * values);
    for (std::int64_t sample = begin; sample < end; ++sample) {
        std::span<float> const image =
            std::span(batch.images_NCHW).subspan(static_cast<std::size_t>(sample - begin) * values, values);
        dataset.read(sample, pixels_CHW);
        data::normalize(pixels_CHW, dataset.shape(), normalization, image);
    }
    return std::move(batch);
}

/// The batches that one rank evaluates between two meetings with the others.
struct Share {
    bool wants_stop = false;
    std::vector<EvaluationSums> sums;

    std::string packed() const {
        std::string text(1, wants_stop ? 1 : 0);
        return text.append(reinterpret_cast<char const*>(sums.data()), sums.size() * sizeof(EvaluationSums));
    }
    static Share unpacked(std::string const& text) {
        Share share{text.at(0) != 0, std::vector<EvaluationSums>((text.size() - 1) / sizeof(EvaluationSums))};
        std::memcpy(share.sums.data(), text.data() + 1, text.size() - 1);
        return share;
    }
};

int most_slots(parallel::Communicator const& communicator, ReplicaSlots const& slots) {
    int most = 1;
    for (std::string const& size : communicator.all_gather(std::to_string(slots.size())))
        most = std::max(most, std::stoi(size));
    return most;
}

}  // namespace

std::optional<EvaluationSums> collective_evaluate(parallel::Communicator const& communicator,
                                                  ReplicaSlots& slots, data::ImageDataset const& test,
                                                  data::Normalization const& normalization,
                                                  std::int64_t batch_size,
                                                  std::function<bool()> const& wants_stop,
                                                  data::DeviceImages* on_device) {
    std::int64_t const num_batches = (test.size() + batch_size - 1) / batch_size;
    std::int64_t const num_ranks = communicator.size();
    std::int64_t const round = num_ranks * most_slots(communicator, slots);
    EvaluationSums total;
    for (std::int64_t first = 0; first < num_batches; first += round) {
        Share mine;  // of batches first + rank, first + rank + P, ...
        mine.wants_stop = wants_stop();
        std::int64_t const end = std::min(num_batches, first + round);
        for (std::int64_t batch = first + communicator.rank(); batch < end; batch += num_ranks)
            mine.sums.emplace_back();
        communicator.agree([&] {
            int next_slot = 0;
            for (std::size_t i = 0; i < mine.sums.size(); ++i) {
                std::int64_t const begin =
                    (first + communicator.rank() + static_cast<std::int64_t>(i) * num_ranks) * batch_size;
                slots.start(next_slot++, [&, i, begin](Replica& replica) {
                    mine.sums[i] =
                        replica.evaluate(read_batch(test, normalization, begin,
                                                    std::min(test.size(), begin + batch_size), on_device),
                                         test.shape());
                });
                if (next_slot == slots.size()) {
                    slots.wait();
                    next_slot = 0;
                }
            }
            slots.wait();
        });

        std::vector<Share> shares;
        for (std::string const& text : communicator.all_gather(mine.packed()))
            shares.push_back(Share::unpacked(text));
        for (std::int64_t batch = first; batch < end; ++batch) {
            Share const& share = shares[static_cast<std::size_t>((batch - first) % num_ranks)];
            EvaluationSums const& sums = share.sums[static_cast<std::size_t>((batch - first) / num_ranks)];
            total.loss += sums.loss;
            total.correct += sums.correct;
            total.count += sums.count;
        }
        if (std::any_of(shares.begin(), shares.end(), [](Share const& share) { return share.wants_stop; }) &&
            end < num_batches)
            return std::nullopt;
    }
    assert(total.count == test.size());
    return total;
}

}  // namespace holdfast::train
