// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/seconds_since.hpp"
#include "cuda/augmentation.hpp"

namespace holdfast::data {

Normalization cifar10_normalization() {
    // Mean and standard deviation of the 50,000 training images, with the digits the tutorial recipe gives.
    return {{0.49139968f, 0.48215827f, 0.44653124f}, {0.24703233f, 0.24348505f, 0.26158768f}};
}

void require_channels(Normalization const& normalization, ImageDataset const& dataset) {
    auto const channels = static_cast<std::size_t>(dataset.shape().channels);
    require(normalization.mean.size() == channels && normalization.stddev.size() == channels,
            ExitCode::do_not_requeue,
            "{} has {} channels, but mean and standard deviation are given for {} and {}",
            dataset.description(), channels, normalization.mean.size(), normalization.stddev.size());
}

void normalize(std::span<std::uint8_t const> pixels_CHW, ImageShape shape, Normalization const& normalization,
               std::span<float> out_CHW) {
    assert(pixels_CHW.size() == static_cast<std::size_t>(shape.num_values()));
    assert(out_CHW.size() == pixels_CHW.size());
    assert(normalization.mean.size() == static_cast<std::size_t>(shape.channels));
    assert(normalization.stddev.size() == normalization.mean.size());
    auto const plane = static_cast<std::size_t>(shape.height) * static_cast<std::size_t>(shape.width);
    for (std::size_t channel = 0; channel < normalization.mean.size(); ++channel) {
        float const mean = normalization.mean[channel];
        float const stddev = normalization.stddev[channel];
        for (std::size_t i = channel * plane; i < (channel + 1) * plane; ++i)
            out_CHW[i] = cuda::normalized_pixel(pixels_CHW[i], mean, stddev);
    }
}

namespace {

void crop(std::span<std::uint8_t const> pixels_CHW, ImageShape shape, cuda::CropFlip const& crop_flip,
          std::span<std::uint8_t> out_CHW) {
    std::size_t i = 0;
    for (int channel = 0; channel < shape.channels; ++channel) {
        std::uint8_t const* const plane_HW =
            pixels_CHW.data() + std::int64_t{channel} * shape.height * shape.width;
        for (int y = 0; y < shape.height; ++y)
            for (int x = 0; x < shape.width; ++x)
                out_CHW[i++] = cuda::cropped_pixel(plane_HW, shape.height, shape.width, crop_flip, y, x);
    }
}

}  // namespace

struct BatchLoader::State {
    ImageDataset const& dataset;
    Normalization const normalization;
    LoaderPlan const plan;
    DeviceImages* const device;

    // Only the loading thread uses these.
    std::int64_t const num_values;
    std::int64_t const epoch_steps;
    std::int64_t order_epoch = -1;
    std::vector<std::int64_t> order;
    std::vector<std::uint8_t> pixels;
    std::vector<std::uint8_t> cropped;

    // `filled` says who owns `back`: the loading thread while it is false, next() while it is true.
    std::mutex mutex;
    std::condition_variable changed;
    bool filled = false;
    bool stopping = false;
    std::exception_ptr error;
    StepBatch back;

    StepBatch front;
    bool is_front_ahead = false;  ///< next() has not returned it yet
    std::int64_t next_step;       ///< of the batch that comes to the front next
    double last_wait_s = 0;
    std::thread thread;

    State(ImageDataset const& data, Normalization norm, LoaderPlan loader_plan, DeviceImages* device_images)
        : dataset(data),
          normalization(std::move(norm)),
          plan(loader_plan),
          device(device_images),
          num_values(data.shape().num_values()),
          epoch_steps(steps_per_epoch(data.size(), plan.num_replicas, plan.batch_size, plan.tail)),
          pixels(static_cast<std::size_t>(num_values)),
          cropped(pixels.size()),
          next_step(plan.first_step) {}

    void load(std::int64_t step, StepBatch& batch);
    /// The sample as it is seen in `epoch`; valid until the next call.
    std::span<std::uint8_t const> read(std::int64_t sample, std::int64_t epoch);
    void run();
    void bring_next_to_front();
};

std::span<std::uint8_t const> BatchLoader::State::read(std::int64_t sample, std::int64_t epoch) {
    dataset.read(sample, pixels);
    if (plan.augmentation == Augmentation::none) return pixels;
    crop(pixels, dataset.shape(), cuda::draw_crop_flip(plan.seed, epoch, sample), cropped);
    return cropped;
}

void BatchLoader::State::load(std::int64_t step, StepBatch& batch) {
    std::int64_t const epoch = step / epoch_steps;
    std::int64_t const step_in_epoch = step % epoch_steps;
    if (epoch != order_epoch) {
        order = with_tail(epoch_order(dataset.size(), plan.seed, epoch), plan.tail, plan.num_replicas);
        order_epoch = epoch;
    }
    std::int64_t const global_batch_size = plan.num_replicas * plan.batch_size;
    batch.step = step;
    batch.epoch = epoch;
    batch.global_samples = std::min(
        global_batch_size, static_cast<std::int64_t>(order.size()) - step_in_epoch * global_batch_size);
    batch.replicas.resize(static_cast<std::size_t>(plan.end_replica - plan.first_replica));
    for (int replica = plan.first_replica; replica < plan.end_replica; ++replica) {
        ReplicaBatch& out = batch.replicas[static_cast<std::size_t>(replica - plan.first_replica)];
        out.samples = replica_samples(order, step_in_epoch, plan.batch_size, replica, plan.num_replicas);
        out.labels_N.resize(out.samples.size());
        for (std::size_t n = 0; n < out.samples.size(); ++n) out.labels_N[n] = dataset.label(out.samples[n]);
    }
    if (device != nullptr) {
        device->send(batch);
        return;
    }
    for (ReplicaBatch& out : batch.replicas) {
        out.images_NCHW.resize(out.samples.size() * pixels.size());
        for (std::size_t n = 0; n < out.samples.size(); ++n)
            normalize(read(out.samples[n], epoch), dataset.shape(), normalization,
                      std::span(out.images_NCHW).subspan(n * pixels.size(), pixels.size()));
    }
}

void BatchLoader::State::run() {
    for (std::int64_t step = plan.first_step; step < plan.end_step; ++step) {
        {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return !filled || stopping; });
            if (stopping) return;
        }
        std::exception_ptr caught;
        try {
            load(step, back);
        } catch (...) {
            caught = std::current_exception();
        }
        {
            std::lock_guard const lock(mutex);
            error = caught;
            filled = true;
        }
        changed.notify_all();
        if (caught) return;
    }
}

BatchLoader::BatchLoader(ImageDataset const& dataset, Normalization normalization, LoaderPlan plan,
                         DeviceImages* device) {
    assert(plan.num_replicas >= 1 && plan.batch_size >= 1);
    assert(0 <= plan.first_replica && plan.first_replica <= plan.end_replica &&
           plan.end_replica <= plan.num_replicas);
    assert(0 <= plan.first_step);
    require_channels(normalization, dataset);
    state_ = std::make_unique<State>(dataset, std::move(normalization), plan, device);
    state_->thread = std::thread([state = state_.get()] { state->run(); });
}

BatchLoader::~BatchLoader() {
    {
        std::lock_guard const lock(state_->mutex);
        state_->stopping = true;
    }
    state_->changed.notify_all();
    state_->thread.join();
}

void BatchLoader::State::bring_next_to_front() {
    // Would wait for ever otherwise, and that on one rank only.
    require(next_step < plan.end_step, ExitCode::internal_error,
            "batch of step {} asked for, but the loader was planned for steps [{}, {})", next_step,
            plan.first_step, plan.end_step);
    auto const start = std::chrono::steady_clock::now();
    {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return filled; });
        if (error) std::rethrow_exception(error);  // and again at every further call
        std::swap(front, back);
        filled = false;
    }
    changed.notify_all();
    last_wait_s = seconds_since(start);
    ++next_step;
}

StepBatch const& BatchLoader::next() {
    if (!std::exchange(state_->is_front_ahead, false)) state_->bring_next_to_front();
    return state_->front;
}

StepBatch const* BatchLoader::look_ahead() {
    State& state = *state_;
    if (!state.is_front_ahead) {
        if (state.next_step == state.plan.end_step) return nullptr;
        state.bring_next_to_front();
        state.is_front_ahead = true;
    }
    return &state.front;
}

double BatchLoader::last_wait_s() const { return state_->last_wait_s; }

}  // namespace holdfast::data
