// SPDX-License-Identifier: Apache-2.0
#include "data/subset.hpp"

#include <cassert>
#include <numeric>
#include <utility>

#include "core/error.hpp"

namespace holdfast::data {
namespace {

class Subset final : public ImageDataset {
  public:
    Subset(std::unique_ptr<ImageDataset> whole, std::vector<std::int64_t> samples, std::string choice)
        : whole_(std::move(whole)), samples_(std::move(samples)), choice_(std::move(choice)) {}

    std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
    ImageShape shape() const override { return whole_->shape(); }
    std::vector<std::string> const& class_names() const override { return whole_->class_names(); }
    std::int64_t label(std::int64_t sample) const override { return whole_->label(in_whole(sample)); }
    void read(std::int64_t sample, std::span<std::uint8_t> pixels_CHW) const override {
        whole_->read(in_whole(sample), pixels_CHW);
    }
    std::string description() const override {
        return fmt::format("{} of {}", choice_, whole_->description());
    }

  private:
    std::int64_t in_whole(std::int64_t sample) const {
        assert(0 <= sample && sample < size());
        return samples_[static_cast<std::size_t>(sample)];
    }

    std::unique_ptr<ImageDataset> whole_;
    std::vector<std::int64_t> samples_;
    std::string choice_;
};

}  // namespace

std::unique_ptr<ImageDataset> first_samples(std::unique_ptr<ImageDataset> dataset, std::int64_t num_samples) {
    assert(num_samples >= 0);
    if (num_samples >= dataset->size()) return dataset;
    std::vector<std::int64_t> samples(static_cast<std::size_t>(num_samples));
    std::iota(samples.begin(), samples.end(), std::int64_t{0});
    return std::make_unique<Subset>(std::move(dataset), std::move(samples),
                                    fmt::format("the first {}", num_samples));
}

std::unique_ptr<ImageDataset> balanced_subset(std::unique_ptr<ImageDataset> dataset, std::int64_t per_class) {
    std::vector<std::int64_t> count(dataset->class_names().size(), 0);
    std::vector<std::int64_t> samples;
    for (std::int64_t sample = 0; sample < dataset->size(); ++sample) {
        std::int64_t& seen = count[static_cast<std::size_t>(dataset->label(sample))];
        if (seen == per_class) continue;
        ++seen;
        samples.push_back(sample);
    }
    for (std::size_t label = 0; label < count.size(); ++label) {
        require(count[label] == per_class, ExitCode::do_not_requeue,
                "{} has {} images of class {} ({}), {} of each class were asked for; ask for fewer",
                dataset->description(), count[label], label, dataset->class_names()[label], per_class);
    }
    return std::make_unique<Subset>(std::move(dataset), std::move(samples),
                                    fmt::format("the first {} of each class", per_class));
}

}  // namespace holdfast::data
