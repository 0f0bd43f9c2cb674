// SPDX-License-Identifier: Apache-2.0
// Keeps the next batch ready: a thread of its own gathers and normalizes the images of this rank's replicas
// for the step after the one being computed. What it yields is a pure function of (settings, seed, epoch,
// step, replica).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/device_images.hpp"
#include "data/epoch_order.hpp"
#include "data/image_dataset.hpp"

namespace holdfast::data {

/// Per-channel mean and standard deviation of pixels scaled to [0, 1].
struct Normalization {
    std::vector<float> mean;
    std::vector<float> stddev;
};

/// Throws Error(do_not_requeue) unless `normalization` is for as many channels as the images have.
void require_channels(Normalization const& normalization, ImageDataset const& dataset);

/// CIFAR-10's training set. Source: reference recipe, torchvision transforms.Normalize arguments.
Normalization cifar10_normalization();

/// cuda::normalized_pixel of every pixel; pixels_CHW and out_CHW have shape.num_values() elements.
void normalize(std::span<std::uint8_t const> pixels_CHW, ImageShape shape, Normalization const& normalization,
               std::span<float> out_CHW);

/// What is done to a training image before normalization.
enum class Augmentation {
    none,
    crop_flip,  ///< cuda::draw_crop_flip, new in every epoch; a sample that --tail pad repeats looks the same both times
};

struct ReplicaBatch {
    std::vector<std::int64_t> samples;  ///< sample numbers, in order; may be empty
    std::vector<float> images_NCHW;     ///< empty where the device computes them
    std::vector<std::int64_t> labels_N;
    DeviceBatch on_device;
};

struct StepBatch {
    std::int64_t step = 0;  ///< global step, counted over all epochs
    std::int64_t epoch = 0;
    std::int64_t global_samples = 0;     ///< samples of this step over all replicas
    std::vector<ReplicaBatch> replicas;  ///< of the local range, in order
};

struct LoaderPlan {
    std::uint64_t seed = 0;
    int num_replicas = 1;
    std::int64_t batch_size = 1;  ///< per replica
    Tail tail = Tail::exact;
    int first_replica = 0;  ///< local range [first_replica, end_replica)
    int end_replica = 1;
    std::int64_t first_step = 0;  ///< global steps [first_step, end_step) will be asked for, in order
    std::int64_t end_step = 0;
    Augmentation augmentation = Augmentation::none;

    /// For the DeviceImages of such a loader.
    DeviceImages::Plan device_plan() const {
        return {(end_replica - first_replica) * batch_size, augmentation, seed};
    }
};

class BatchLoader {
  public:
    /// `dataset` must outlive the loader, and so must `device`: if given, the images are left to it, which was made for the same
    /// data, normalization and augmentation.
    BatchLoader(ImageDataset const& dataset, Normalization normalization, LoaderPlan plan,
                DeviceImages* device = nullptr);
    ~BatchLoader();
    BatchLoader(BatchLoader const&) = delete;
    BatchLoader& operator=(BatchLoader const&) = delete;

    /// The batch of the next step; valid until the next call of this or look_ahead(). Rethrows what went wrong in the loading
    /// thread.
    StepBatch const& next();
    /// What next() will return, valid as long; null after the last step.
    StepBatch const* look_ahead();
    /// Seconds that next() or look_ahead(), whichever came first, waited for the last batch.
    double last_wait_s() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace holdfast::data
