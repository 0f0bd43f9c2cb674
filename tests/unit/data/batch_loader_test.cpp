// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.hpp"

#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "core/digest.hpp"
#include "cuda/augmentation.hpp"
#include "data/synthetic_images.hpp"
#include "support/expect_error.hpp"

namespace holdfast::data {
namespace {

using test::expect_error;

TEST(Normalize, HasTheBitsOfTorchvision) {
    // All 256 values in each of three channels; the digest is of torchvision 0.30's ToTensor + Normalize
    // (float32).
    std::vector<std::uint8_t> pixels(3 * 256);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i % 256);
    std::vector<float> out(pixels.size());
    normalize(pixels, {3, 16, 16}, cifar10_normalization(), out);
    EXPECT_EQ(holdfast::digest_of(std::as_bytes(std::span(out))).hex(), "8f38bbe6b1010e144150741efc560557");
}

std::vector<std::uint8_t> crop_flipped(std::vector<std::uint8_t> const& pixels, ImageShape shape,
                                       cuda::CropFlip const& crop) {
    std::vector<std::uint8_t> out;
    for (int channel = 0; channel < shape.channels; ++channel)
        for (int y = 0; y < shape.height; ++y)
            for (int x = 0; x < shape.width; ++x)
                out.push_back(cuda::cropped_pixel(pixels.data() + channel * shape.height * shape.width,
                                                  shape.height, shape.width, crop, y, x));
    return out;
}

/// The batch computed from its definition, without thread, buffers or slices.
ReplicaBatch direct(ImageDataset const& dataset, LoaderPlan const& plan, std::int64_t step, int replica) {
    std::int64_t const steps = steps_per_epoch(dataset.size(), plan.num_replicas, plan.batch_size, plan.tail);
    auto const order =
        with_tail(epoch_order(dataset.size(), plan.seed, step / steps), plan.tail, plan.num_replicas);
    ReplicaBatch batch;
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.shape().num_values()));
    std::vector<float> image(pixels.size());
    for (std::int64_t i = 0; i < plan.batch_size; ++i) {
        auto const position =
            static_cast<std::size_t>((step % steps * plan.batch_size + i) * plan.num_replicas + replica);
        if (position >= order.size()) break;
        batch.samples.push_back(order[position]);
        batch.labels_N.push_back(dataset.label(order[position]));
        dataset.read(order[position], pixels);
        if (plan.augmentation == Augmentation::crop_flip)
            pixels = crop_flipped(pixels, dataset.shape(),
                                  cuda::draw_crop_flip(plan.seed, step / steps, order[position]));
        normalize(pixels, dataset.shape(), cifar10_normalization(), image);
        batch.images_NCHW.insert(batch.images_NCHW.end(), image.begin(), image.end());
    }
    return batch;
}

struct Case {
    std::int64_t num_samples;
    LoaderPlan plan;
};

class Loading : public testing::TestWithParam<Case> {};

TEST_P(Loading, EqualsTheDirectComputation) {
    auto const& [num_samples, plan] = GetParam();
    TrainAndTest const sets = synthetic_datasets(num_samples);
    BatchLoader loader(*sets.train, cifar10_normalization(), plan);
    for (std::int64_t step = plan.first_step; step < plan.end_step; ++step) {
        StepBatch const* const ahead = step % 3 == 1 ? loader.look_ahead() : nullptr;
        if (ahead != nullptr) {
            EXPECT_EQ(loader.look_ahead(), ahead) << "the same until it is taken";
        }
        StepBatch const& batch = loader.next();
        EXPECT_TRUE(ahead == nullptr || ahead == &batch);
        EXPECT_EQ(batch.step, step);
        EXPECT_GE(loader.last_wait_s(), 0.0);
        ASSERT_EQ(batch.replicas.size(), static_cast<std::size_t>(plan.end_replica - plan.first_replica));
        std::int64_t global_samples = 0;
        for (int replica = 0; replica < plan.num_replicas; ++replica) {
            ReplicaBatch const expected = direct(*sets.train, plan, step, replica);
            global_samples += static_cast<std::int64_t>(expected.samples.size());
            if (replica < plan.first_replica || replica >= plan.end_replica) continue;
            ReplicaBatch const& actual =
                batch.replicas[static_cast<std::size_t>(replica - plan.first_replica)];
            EXPECT_EQ(actual.samples, expected.samples);
            EXPECT_EQ(actual.labels_N, expected.labels_N);
            EXPECT_TRUE(actual.images_NCHW == expected.images_NCHW)
                << "step " << step << " replica " << replica;
        }
        EXPECT_EQ(batch.global_samples, global_samples);
    }
    EXPECT_EQ(loader.look_ahead(), nullptr);
    expect_error([&] { loader.next(); }, {"planned for steps"}, ExitCode::internal_error);
}

LoaderPlan augmented(LoaderPlan plan) {
    plan.augmentation = Augmentation::crop_flip;
    return plan;
}

LoaderPlan plan(int replicas, std::int64_t batch_size, int first, int end, std::int64_t first_step,
                std::int64_t end_step, Tail tail = Tail::exact) {
    return {7, replicas, batch_size, tail, first, end, first_step, end_step, Augmentation::none};
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, Loading,
    testing::Values(Case{97, plan(5, 4, 0, 5, 0, 15)},  // 5 steps an epoch, 17 samples in the last
                    Case{97, plan(5, 4, 2, 4, 7,
                                  12)},  // resumed inside an epoch, over an epoch's end, two of five replicas
                    Case{3, plan(7, 2, 0, 7, 0, 4)},  // fewer samples than replicas: empty batches
                    Case{3, plan(7, 2, 5, 7, 1, 3)},  // only empty batches here
                    Case{1, plan(1, 1, 0, 1, 0, 3)},  //
                    Case{101, plan(7, 3, 0, 7, 0, 9, Tail::pad)},  //
                    Case{3, plan(7, 2, 0, 7, 0, 3, Tail::pad)},    //
                    Case{97, augmented(plan(5, 4, 0, 5, 0, 15))},
                    Case{97, augmented(plan(5, 4, 2, 4, 7, 12))},
                    Case{3, augmented(plan(7, 2, 0, 7, 0, 3, Tail::pad))}));

/// The images a loader yields, by epoch and sample.
using SeenImages = std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>>;

SeenImages seen_images(ImageDataset const& dataset, LoaderPlan const& plan) {
    std::int64_t const steps = steps_per_epoch(dataset.size(), plan.num_replicas, plan.batch_size, plan.tail);
    auto const num_values = dataset.shape().num_values();
    BatchLoader loader(dataset, cifar10_normalization(), plan);
    SeenImages seen;
    for (std::int64_t step = plan.first_step; step < plan.end_step; ++step)
        for (ReplicaBatch const& batch : loader.next().replicas)
            for (std::size_t n = 0; n < batch.samples.size(); ++n) {
                auto const image = batch.images_NCHW.begin() + static_cast<std::int64_t>(n) * num_values;
                seen[{step / steps, batch.samples[n]}].assign(image, image + num_values);
            }
    return seen;
}

TEST(BatchLoader, AugmentsASampleAlikeWhateverElseIsReadBeforeIt) {
    TrainAndTest const sets = synthetic_datasets(53);
    LoaderPlan const whole = augmented(plan(1, 53, 0, 1, 0, 2));  // a step is an epoch
    SeenImages const expected = seen_images(*sets.train, whole);
    ASSERT_EQ(expected.size(), 2 * 53u);
    // Other batches in another order; one replica of many alone; begun in the second epoch.
    for (LoaderPlan const& other :
         {plan(5, 2, 0, 5, 0, 12), plan(7, 1, 3, 4, 0, 16), plan(2, 3, 1, 2, 9, 18)}) {
        SeenImages const seen = seen_images(*sets.train, augmented(other));
        ASSERT_FALSE(seen.empty());
        for (auto const& [epoch_and_sample, image] : seen)
            EXPECT_TRUE(image == expected.at(epoch_and_sample))
                << "epoch " << epoch_and_sample.first << " sample " << epoch_and_sample.second;
    }
}

TEST(BatchLoader, AugmentsOtherwiseInAnotherEpochAndByAnotherSeed) {
    TrainAndTest const sets = synthetic_datasets(53);
    LoaderPlan const of_seed_7 = augmented(plan(1, 53, 0, 1, 0, 2));
    LoaderPlan of_seed_8 = of_seed_7;
    of_seed_8.seed = 8;
    SeenImages const seen = seen_images(*sets.train, of_seed_7);
    SeenImages const by_another_seed = seen_images(*sets.train, of_seed_8);
    int same_in_both_epochs = 0;
    int same_by_both_seeds = 0;
    for (std::int64_t sample = 0; sample < 53; ++sample) {
        same_in_both_epochs += seen.at({0, sample}) == seen.at({1, sample}) ? 1 : 0;
        same_by_both_seeds += seen.at({0, sample}) == by_another_seed.at({0, sample}) ? 1 : 0;
    }
    EXPECT_LT(same_in_both_epochs, 5);  // 1 in 162 is expected
    EXPECT_LT(same_by_both_seeds, 5);
}

TEST(BatchLoader, StartedAnywhereItYieldsTheSameBatches) {
    TrainAndTest const sets = synthetic_datasets(61);
    BatchLoader from_start(*sets.train, cifar10_normalization(), plan(3, 4, 0, 3, 0, 14));
    for (std::int64_t step = 0; step < 9; ++step) from_start.next();
    BatchLoader resumed(*sets.train, cifar10_normalization(), plan(3, 4, 0, 3, 9, 14));
    for (std::int64_t step = 9; step < 14; ++step) {
        StepBatch const& expected = from_start.next();
        StepBatch const& actual = resumed.next();
        for (std::size_t r = 0; r < 3; ++r) {
            EXPECT_EQ(actual.replicas[r].samples, expected.replicas[r].samples);
            EXPECT_TRUE(actual.replicas[r].images_NCHW == expected.replicas[r].images_NCHW);
        }
    }
}

/// Fails at one sample.
class Failing final : public ImageDataset {
  public:
    std::int64_t size() const override { return 8; }
    ImageShape shape() const override { return {3, 2, 2}; }
    std::vector<std::string> const& class_names() const override { return names_; }
    std::int64_t label(std::int64_t) const override { return 0; }
    void read(std::int64_t sample, std::span<std::uint8_t>) const override {
        require(sample != bad_, ExitCode::retry, "sample {} cannot be read", sample);
    }
    std::string description() const override { return "failing"; }

    std::int64_t const bad_ = epoch_order(8, 7, 0)[5];  // read in step 2 of batches of two

  private:
    std::vector<std::string> names_{"only"};
};

TEST(BatchLoader, AnErrorOfItsThreadReachesNextAtItsStep) {
    Failing const dataset;
    BatchLoader loader(dataset, cifar10_normalization(), plan(1, 2, 0, 1, 0, 4));
    loader.next();
    loader.next();
    std::string const message = "sample " + std::to_string(dataset.bad_) + " cannot be read";
    expect_error([&] { loader.next(); }, {message}, ExitCode::retry);
    expect_error([&] { loader.next(); }, {message}, ExitCode::retry);
}

TEST(BatchLoader, CanBeDroppedAtAnyMoment) {
    TrainAndTest const sets = synthetic_datasets(64);
    for (int taken = 0; taken < 5; ++taken) {
        BatchLoader loader(*sets.train, cifar10_normalization(), plan(1, 8, 0, 1, 0, 1000));
        for (int i = 0; i < taken; ++i) loader.next();
    }
    BatchLoader const nothing_to_do(*sets.train, cifar10_normalization(), plan(1, 8, 0, 1, 5, 5));
}

TEST(BatchLoader, RefusesANormalizationForOtherChannels) {
    TrainAndTest const sets = synthetic_datasets(8);
    expect_error([&] { BatchLoader(*sets.train, {{0.5f}, {0.5f}}, plan(1, 8, 0, 1, 0, 1)); }, {"3 channels"});
}

}  // namespace
}  // namespace holdfast::data
