// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "core/error.hpp"
#include "cuda/deferred_host_streams.hpp"
#include "cuda/device_runtime.hpp"
#include "cuda/limited_host_memory.hpp"
#include "cuda/out_of_memory.hpp"
#include "cuda/sum_order_check.hpp"
#include "cuda/sum_stack.hpp"

namespace holdfast::cuda {
namespace {

constexpr std::align_val_t alignment{256};

constexpr MemoryInfo unlimited{std::numeric_limits<std::size_t>::max(),
                               std::numeric_limits<std::size_t>::max()};
MemoryInfo g_memory = unlimited;

// Everything is done when it is asked for, so streams and events have nothing to wait for; but for the streams made within
// DeferredHostStreams. One lock for all of these, since work in one may wait for another.
using Lock = std::lock_guard<std::recursive_mutex>;
std::recursive_mutex g_mutex;
std::atomic<bool> g_defer{false};
Stream const g_at_once;

/// What a stream has been asked for and has not done yet.
class Queue {
  public:
    std::uint64_t num_queued() const { return num_done_ + waiting_.size(); }
    std::uint64_t num_done() const { return num_done_; }
    void add(std::function<void()> work) { waiting_.push_back(std::move(work)); }
    void run_one() {
        std::function<void()> const work = std::move(waiting_.front());
        waiting_.pop_front();
        work();
        ++num_done_;
    }
    void run_until(std::uint64_t num) {
        while (num_done_ < num) run_one();
    }
    void run_all() {
        Lock const lock(g_mutex);
        run_until(num_queued());
    }

  private:
    std::deque<std::function<void()>> waiting_;
    std::uint64_t num_done_ = 0;
};

using SharedQueue = std::shared_ptr<Queue>;

/// What the handle of such a stream points to.
struct Deferred : HostQueue {
    SharedQueue queue = std::make_shared<Queue>();
    void add(std::function<void()> work) override {
        Lock const lock(g_mutex);
        queue->add(std::move(work));
    }
};
Deferred* deferred_of(Stream const& stream) {
    return static_cast<Deferred*>(static_cast<HostQueue*>(stream.get()));
}
SharedQueue queue_of(Stream const& stream) {
    Deferred const* const deferred = deferred_of(stream);
    return deferred != nullptr ? deferred->queue : nullptr;
}

/// What an event has recorded: `queue` has done so much. No queue: reached.
struct Point {
    SharedQueue queue{};
    std::uint64_t num_done = 0;
    std::chrono::steady_clock::time_point recorded = std::chrono::steady_clock::now();

    void reach() const {
        if (queue) queue->run_until(num_done);
    }
    /// Asking takes time, in which the stream gets on.
    bool is_reached_or_nearer() const {
        if (!queue || queue->num_done() >= num_done) return true;
        queue->run_one();
        return false;
    }
};

/// Whether `work(a stream that does not defer)` was put off until somebody waits for it.
template <typename Work>
bool deferred(Stream const& stream, Work work) {
    Lock const lock(g_mutex);
    SharedQueue const queue = queue_of(stream);
    if (queue == nullptr) return false;
    queue->add([work = std::move(work)] { work(g_at_once); });
    return true;
}

}  // namespace

bool supports_gpus() { return false; }
std::string runtime_name() { return "host"; }
std::vector<std::string> visible_device_uuids() { return {}; }
std::string device_name(int) { return "host"; }
std::size_t device_memory_in_use() { return 0; }
void use_device(int) {}

Stream::Stream(StreamPriority) : handle_(g_defer ? static_cast<HostQueue*>(new Deferred) : nullptr) {}

Stream::~Stream() {
    // As DeviceFloats of a GPU: what is queued may wait for a lost peer.
    if (std::uncaught_exceptions() == 0) synchronize();
    delete deferred_of(*this);
}

void Stream::synchronize() const {
    if (SharedQueue const queue = queue_of(*this)) queue->run_all();
}

Event::Event(EventTime) : handle_(new Point) {}
Event::~Event() { delete static_cast<Point*>(handle_); }

void Event::record(Stream const& stream) {
    Lock const lock(g_mutex);
    SharedQueue const queue = queue_of(stream);
    *static_cast<Point*>(handle_) = queue != nullptr ? Point{queue, queue->num_queued()} : Point{};
}

double Event::seconds_since(Event const& earlier) const {
    earlier.synchronize();
    synchronize();
    Lock const lock(g_mutex);
    return std::chrono::duration<double>(static_cast<Point*>(handle_)->recorded -
                                         static_cast<Point*>(earlier.handle_)->recorded)
        .count();
}

void Event::make_wait(Stream const& stream) const {
    Lock const lock(g_mutex);
    Point const point = *static_cast<Point*>(handle_);
    if (deferred(stream, [point](Stream const&) { point.reach(); })) return;
    point.reach();
}

void Event::synchronize() const {
    Lock const lock(g_mutex);
    static_cast<Point*>(handle_)->reach();
}

bool Event::is_reached() const {
    Lock const lock(g_mutex);
    return static_cast<Point*>(handle_)->is_reached_or_nearer();
}

Graph::Graph(Stream const&, std::function<void()> work) : work_(std::move(work)) {}
Graph::~Graph() = default;
void Graph::launch(Stream const&) const { work_(); }

DeferredHostStreams::DeferredHostStreams() { g_defer = true; }
DeferredHostStreams::~DeferredHostStreams() { g_defer = false; }

LimitedHostMemory::LimitedHostMemory(std::size_t size_bytes) { g_memory = {size_bytes, size_bytes}; }
LimitedHostMemory::~LimitedHostMemory() { g_memory = unlimited; }

void* allocate(MemoryKind kind, std::size_t size_bytes) {
    if (kind == MemoryKind::device && g_memory.total_bytes != unlimited.total_bytes) {
        if (size_bytes > g_memory.free_bytes) fail_out_of_memory(size_bytes, g_memory);
        g_memory.free_bytes -= size_bytes;
    }
    return std::memset(::operator new(size_bytes, alignment), 0, size_bytes);
}

void release(MemoryKind, void* memory) { ::operator delete(memory, alignment); }

std::size_t free_device_memory() { return g_memory.free_bytes; }

void copy(void* to, void const* from, std::size_t size_bytes, Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { copy(to, from, size_bytes, now); })) return;
    std::memmove(to, from, size_bytes);
}

void fill_with_zero(float* data, std::size_t count, Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { fill_with_zero(data, count, now); })) return;
    std::fill_n(data, count, 0.0f);
}

void sum_in_order(float* out, std::vector<float const*> const& sources, SumOrder const& order,
                  std::size_t count, Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { sum_in_order(out, sources, order, count, now); })) return;
    require_valid_order(sources, order);
    for (std::size_t i = 0; i < count; ++i) {
        SumStack<SumOrder::max_depth> sums;
        for (std::int16_t const step : order.postfix) {
            if (step >= 0)
                sums.push(sources[static_cast<std::size_t>(step)][i]);
            else
                sums.add();
        }
        out[i] = sums.newest();
    }
}

void write_leaf(float* leaf, float const* source, std::size_t count, float scale, LeafWrite write,
                float* not_finite, Stream const& stream) {
    if (deferred(stream,
                 [=](Stream const& now) { write_leaf(leaf, source, count, scale, write, not_finite, now); }))
        return;
    bool all_finite = true;
    for (std::size_t i = 0; i < count; ++i) {
        float const value = source != nullptr ? source[i] : 0.0f;
        all_finite = all_finite && std::isfinite(value);
        float const scaled = scale * value;
        leaf[i] = write == LeafWrite::add ? leaf[i] + scaled : scaled;
    }
    if (!all_finite && not_finite != nullptr) *not_finite = 1.0f;
}

void write_pieces(std::vector<LeafPiece> const& pieces, float* not_finite, Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { write_pieces(pieces, not_finite, now); })) return;
    for (LeafPiece const& piece : pieces)
        for (std::size_t i = 0; i < piece.count; ++i) {
            piece.leaf[i] = piece.type == PieceType::float32
                                ? static_cast<float const*>(piece.source)[i]
                                : float_of_bfloat16(static_cast<std::uint16_t const*>(piece.source)[i]);
            if (!std::isfinite(piece.leaf[i]) && not_finite != nullptr) *not_finite = 1.0f;
        }
}

void round_to_bfloat16(std::uint16_t* rounded, float const* values, std::size_t count, Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { round_to_bfloat16(rounded, values, count, now); })) return;
    for (std::size_t i = 0; i < count; ++i) rounded[i] = bfloat16_bits(values[i]);
}

void sgd_step(SgdTensors const& tensors, float const* gradient, std::size_t count, std::size_t num_decaying,
              SgdRates const& rates, Stream const&) {
    for (std::size_t i = 0; i < count; ++i) sgd_update_element(tensors, gradient, i, num_decaying, rates);
}

void update_average(float* average, float const* values, std::size_t count, float weight,
                    Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { update_average(average, values, count, weight, now); }))
        return;
    for (std::size_t i = 0; i < count; ++i) average[i] = moved_average(average[i], values[i], weight);
}

void write_batch(BatchSource const& source, ImageFormat format, void* images, std::int64_t* labels_N,
                 Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { write_batch(source, format, images, labels_N, now); }))
        return;
    for (std::int64_t n = 0; n < source.count; ++n) {
        write_image(source, format, images, n, 0, 1);
        labels_N[n] = source.labels_N[n];
    }
}

void update_running_mean(float* running, float const* batch, std::size_t count, Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { update_running_mean(running, batch, count, now); })) return;
    for (std::size_t i = 0; i < count; ++i) running[i] = 0.1f * batch[i] + 0.9f * running[i];
}

void update_running_variance(float* running, float const* batch, std::size_t count, Stream const& stream) {
    if (deferred(stream, [=](Stream const& now) { update_running_variance(running, batch, count, now); }))
        return;
    for (std::size_t i = 0; i < count; ++i) running[i] = std::fma(0.1f, batch[i], 0.9f * running[i]);
}

}  // namespace holdfast::cuda
