// SPDX-License-Identifier: Apache-2.0
// The images of a data set for a device. Its memory holds all of their pixels where they fit; then a step brings only the numbers
// of its samples, otherwise their pixels too. Both travel in a stream of their own while the step before computes, out of two
// pinned buffers in turn. What the network sees is computed on the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/batch_images.hpp"
#include "cuda/device_runtime.hpp"
#include "data/image_dataset.hpp"

namespace holdfast::data {

struct Normalization;
struct StepBatch;
enum class Augmentation;

/// The batch of one replica, on its way to the device. Default: there is none.
class DeviceBatch {
  public:
    DeviceBatch() = default;
    DeviceBatch(cuda::BatchSource const& source, cuda::Event const& is_there, cuda::Event& is_used)
        : source_(source), is_there_(&is_there), is_used_(&is_used) {}

    explicit operator bool() const { return is_there_ != nullptr; }
    /// Queues the writing of all images and labels to device memory. Before the next call of BatchLoader::next or look_ahead.
    void write(cuda::ImageFormat format, void* images, std::int64_t* labels_N,
               cuda::Stream const& stream) const;

  private:
    cuda::BatchSource source_;
    cuda::Event const* is_there_ = nullptr;
    cuda::Event* is_used_ = nullptr;
};

class DeviceImages {
  public:
    struct Plan {
        std::int64_t max_samples = 0;  ///< of a step on this rank
        Augmentation augmentation{};
        std::uint64_t seed = 0;  ///< of the augmentation
    };

    /// The share of the free device memory that the images may take: gradients and activations come later and need the rest.
    static std::size_t default_limit_bytes() { return cuda::free_device_memory() / 4; }

    /// Copies the pixels to the device if they take at most `limit_bytes`. `device` is the number of the one in use. `dataset`
    /// must outlive this. Throws Error(do_not_requeue) if a buffer does not fit into the memory of device or host.
    DeviceImages(ImageDataset const& dataset, Normalization const& normalization, Plan const& plan,
                 int device, std::size_t limit_bytes = default_limit_bytes());

    /// Sends what the device lacks of the batch, whose samples and labels are known, and sets on_device of its replicas. Blocks
    /// while the device still reads the buffer of two steps ago. By one thread at a time; what was sent two steps ago must have
    /// been written (DeviceBatch::write) before.
    void send(StepBatch& batch);

    bool are_all_there() const { return pixels_.size() != 0; }
    /// "CIFAR-10 (...): all pixels in the GPU's memory (154 MB)".
    std::string description() const;

  private:
    struct Slot {
        cuda::PinnedBytes in_host;
        cuda::DeviceBytes on_device;
        cuda::Event is_there;
        cuda::Event is_used;
    };

    void load_pixels();
    std::size_t bytes_of(std::size_t num_samples) const;

    ImageDataset const& dataset_;
    cuda::ImageTransform transform_;
    Plan plan_;
    int device_;
    std::size_t limit_bytes_;
    std::size_t set_bytes_;
    cuda::DeviceBytes pixels_;  ///< [number of samples, C, H, W], or nothing
    std::array<Slot, 2> slots_;
    std::size_t next_slot_ = 0;
    cuda::Stream stream_;  ///< last: what it does uses the buffers
};

}  // namespace holdfast::data
