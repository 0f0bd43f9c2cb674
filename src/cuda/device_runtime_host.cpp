// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "core/error.hpp"
#include "cuda/device_runtime.hpp"
#include "cuda/sum_order_check.hpp"

namespace holdfast::cuda {
namespace {

constexpr std::align_val_t alignment{256};

}  // namespace

bool supports_gpus() { return false; }
std::string runtime_name() { return "host"; }
std::vector<std::string> visible_device_uuids() { return {}; }
std::string device_name(int) { return "host"; }
void use_device(int) {}

// Everything is done when it is asked for, so streams and events have nothing to wait for.
Stream::Stream(StreamPriority) {}
Stream::~Stream() = default;
void Stream::synchronize() const {}
Event::Event() = default;
Event::~Event() = default;
void Event::record(Stream const&) {}
void Event::make_wait(Stream const&) const {}
bool Event::is_reached() const { return true; }

DeviceFloats::DeviceFloats(std::size_t count)
    : data_(static_cast<float*>(::operator new(count * sizeof(float), alignment))), count_(count) {
    std::fill_n(data_, count, 0.0f);
}

DeviceFloats::~DeviceFloats() { ::operator delete(data_, alignment); }

DeviceFloats& DeviceFloats::operator=(DeviceFloats&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
}

void copy(void* to, void const* from, std::size_t size_bytes, Stream const&) {
    std::memmove(to, from, size_bytes);
}

void fill_with_zero(float* data, std::size_t count, Stream const&) { std::fill_n(data, count, 0.0f); }

void sum_in_order(float* out, std::vector<float const*> const& sources, SumOrder const& order,
                  std::size_t count, Stream const&) {
    require_valid_order(sources, order);
    for (std::size_t i = 0; i < count; ++i) {
        float waiting[SumOrder::max_depth];
        int depth = 0;
        for (std::int16_t const step : order.postfix) {
            if (step >= 0) {
                waiting[depth++] = sources[static_cast<std::size_t>(step)][i];
            } else {
                --depth;
                waiting[depth - 1] = waiting[depth - 1] + waiting[depth];
            }
        }
        out[i] = waiting[0];
    }
}

void write_leaf(float* leaf, float const* source, std::size_t count, float scale, LeafWrite write,
                float* not_finite, Stream const&) {
    bool all_finite = true;
    for (std::size_t i = 0; i < count; ++i) {
        float const value = source != nullptr ? source[i] : 0.0f;
        all_finite = all_finite && std::isfinite(value);
        float const scaled = scale * value;
        leaf[i] = write == LeafWrite::add ? leaf[i] + scaled : scaled;
    }
    if (!all_finite && not_finite != nullptr) *not_finite = 1.0f;
}

void sgd_step(float* parameters, float* momentum, float const* gradient, std::size_t count, float mu,
              float lr, Stream const&) {
    for (std::size_t i = 0; i < count; ++i) {
        float const velocity = mu * momentum[i] + gradient[i];
        momentum[i] = velocity;
        parameters[i] = std::fma(velocity, -lr, parameters[i]);
    }
}

void update_running_mean(float* running, float const* batch, std::size_t count, Stream const&) {
    for (std::size_t i = 0; i < count; ++i) running[i] = 0.1f * batch[i] + 0.9f * running[i];
}

void update_running_variance(float* running, float const* batch, std::size_t count, Stream const&) {
    for (std::size_t i = 0; i < count; ++i) running[i] = std::fma(0.1f, batch[i], 0.9f * running[i]);
}

}  // namespace holdfast::cuda
