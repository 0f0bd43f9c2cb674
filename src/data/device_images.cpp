// SPDX-License-Identifier: Apache-2.0
#include "data/device_images.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "core/error.hpp"
#include "data/batch_loader.hpp"

namespace holdfast::data {
namespace {

/// What is read before a copy to the device begins, when the whole set goes there: enough for the bus's full speed.
constexpr std::size_t chunk_bytes = std::size_t{8} << 20;

cuda::ImageTransform transform_of(ImageDataset const& dataset, Normalization const& normalization,
                                  DeviceImages::Plan const& plan) {
    ImageShape const shape = dataset.shape();
    auto const channels = static_cast<std::size_t>(shape.channels);
    require(shape.channels <= cuda::ImageTransform::max_channels, ExitCode::do_not_requeue,
            "{} has {} channels, and a GPU takes at most {}; use --device cpu", dataset.description(),
            channels, cuda::ImageTransform::max_channels);
    require_channels(normalization, dataset);
    cuda::ImageTransform transform;
    transform.channels = shape.channels;
    transform.height = shape.height;
    transform.width = shape.width;
    std::copy(normalization.mean.begin(), normalization.mean.end(), transform.mean);
    std::copy(normalization.stddev.begin(), normalization.stddev.end(), transform.stddev);
    transform.crop_flip = plan.augmentation == Augmentation::crop_flip;
    transform.seed = plan.seed;
    return transform;
}

}  // namespace

void DeviceBatch::write(cuda::ImageFormat format, void* images, std::int64_t* labels_N,
                        cuda::Stream const& stream) const {
    is_there_->make_wait(stream);
    cuda::write_batch(source_, format, images, labels_N, stream);
    is_used_->record(stream);
}

DeviceImages::DeviceImages(ImageDataset const& dataset, Normalization const& normalization, Plan const& plan,
                           int device, std::size_t limit_bytes)
    : dataset_(dataset),
      transform_(transform_of(dataset, normalization, plan)),
      plan_(plan),
      device_(device),
      limit_bytes_(limit_bytes),
      set_bytes_(static_cast<std::size_t>(dataset.size()) *
                 static_cast<std::size_t>(transform_.num_values())) {
    if (set_bytes_ <= limit_bytes) load_pixels();
    for (Slot& slot : slots_) {
        std::size_t const size = bytes_of(static_cast<std::size_t>(plan.max_samples));
        slot.in_host = cuda::PinnedBytes(size);
        slot.on_device = cuda::DeviceBytes(size);
    }
}

void DeviceImages::load_pixels() {
    pixels_ = cuda::DeviceBytes(set_bytes_);
    auto const image_bytes = static_cast<std::size_t>(transform_.num_values());
    std::int64_t const chunk =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(chunk_bytes / image_bytes));
    cuda::PinnedBytes const buffer(static_cast<std::size_t>(std::min(chunk, dataset_.size())) * image_bytes);
    for (std::int64_t begin = 0; begin < dataset_.size(); begin += chunk) {
        std::int64_t const end = std::min(begin + chunk, dataset_.size());
        for (std::int64_t sample = begin; sample < end; ++sample)
            dataset_.read(sample, {buffer.data() + static_cast<std::size_t>(sample - begin) * image_bytes,
                                   image_bytes});
        cuda::copy(pixels_.data() + static_cast<std::size_t>(begin) * image_bytes, buffer.data(),
                   static_cast<std::size_t>(end - begin) * image_bytes, stream_);
        stream_.synchronize();
    }
}

std::size_t DeviceImages::bytes_of(std::size_t num_samples) const {
    std::size_t const pixels = are_all_there() ? 0 : static_cast<std::size_t>(transform_.num_values());
    return num_samples * (2 * sizeof(std::int64_t) + pixels);
}

void DeviceImages::send(StepBatch& batch) {
    std::size_t num_samples = 0;
    for (ReplicaBatch const& replica : batch.replicas) num_samples += replica.samples.size();
    require(num_samples <= static_cast<std::size_t>(plan_.max_samples), ExitCode::internal_error,
            "a batch of {} samples for buffers of {}", num_samples, plan_.max_samples);
    cuda::use_device(device_);
    Slot& slot = slots_[next_slot_++ % slots_.size()];
    slot.is_there.synchronize();

    // In both buffers: sample numbers, labels and, where the device lacks them, pixels.
    auto const samples_of = [&](auto const& buffer) {
        return reinterpret_cast<std::int64_t*>(buffer.data());
    };
    auto const labels_of = [&](auto const& buffer) { return samples_of(buffer) + num_samples; };
    auto const pixels_of = [&](auto const& buffer) {
        return buffer.data() + num_samples * 2 * sizeof(std::int64_t);
    };
    auto const image_bytes = static_cast<std::size_t>(transform_.num_values());
    std::size_t done = 0;
    for (ReplicaBatch& replica : batch.replicas) {
        cuda::BatchSource source;
        source.samples_N = samples_of(slot.on_device) + done;
        source.labels_N = labels_of(slot.on_device) + done;
        source.has_whole_set = are_all_there();
        source.pixels_NCHW =
            are_all_there() ? pixels_.data() : pixels_of(slot.on_device) + done * image_bytes;
        source.count = static_cast<std::int64_t>(replica.samples.size());
        source.epoch = batch.epoch;
        source.transform = transform_;
        replica.on_device = DeviceBatch(source, slot.is_there, slot.is_used);
        std::copy(replica.samples.begin(), replica.samples.end(), samples_of(slot.in_host) + done);
        std::copy(replica.labels_N.begin(), replica.labels_N.end(), labels_of(slot.in_host) + done);
        for (std::int64_t const sample : replica.samples) {
            if (!are_all_there())
                dataset_.read(sample, {pixels_of(slot.in_host) + done * image_bytes, image_bytes});
            ++done;
        }
    }
    slot.is_used.make_wait(stream_);
    cuda::copy(slot.on_device.data(), slot.in_host.data(), bytes_of(num_samples), stream_);
    slot.is_there.record(stream_);
}

std::string DeviceImages::description() const {
    if (are_all_there())
        return fmt::format("{}: all pixels in the device's memory ({} MB)", dataset_.description(),
                           set_bytes_ >> 20);
    return fmt::format(
        "{}: {} MB of pixels, too much for the {} MB of the device's memory that they may take; each step "
        "brings its own",
        dataset_.description(), set_bytes_ >> 20, limit_bytes_ >> 20);
}

}  // namespace holdfast::data
