// SPDX-License-Identifier: Apache-2.0
// What the GPU path asks of a device: memory, streams, events, copies, the sum in the tree and the
// optimizer's pass. Without types of CUDA or torch, and C++17, because nvcc compiles it too. There are two
// implementations: device_runtime.cu, and device_runtime_host.cpp, which does the same in host memory at
// once, so that what stands on it can be tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/batch_images.hpp"
#include "cuda/update_rules.hpp"

namespace holdfast::cuda {

/// Whether this is the CUDA implementation, which can use GPUs if there are any.
bool supports_gpus();
/// "CUDA 13.0" or "host".
std::string runtime_name();
/// UUIDs of the GPUs this process sees, in device order; empty on the host.
std::vector<std::string> visible_device_uuids();
std::string device_name(int device);
/// Bytes of this process's GPU that are in use, by whichever process; 0 on the host.
std::size_t device_memory_in_use();
/// Must come before anything else here, in every thread: CUDA otherwise takes device 0 and its memory.
void use_device(int device);

enum class StreamPriority { normal, high };

/// Work in order, beside the host and other streams.
class Stream {
  public:
    /// high: of work that waits for the GPU, that of this stream is next.
    explicit Stream(StreamPriority priority = StreamPriority::normal);
    ~Stream();
    Stream(Stream const&) = delete;
    Stream& operator=(Stream const&) = delete;
    void* get() const { return handle_; }  ///< a cudaStream_t; null on the host
    void synchronize() const;

  private:
    void* handle_ = nullptr;
};

enum class EventTime { unknown, kept };

/// A point in a stream that another stream or the host can wait for.
class Event {
  public:
    explicit Event(EventTime time = EventTime::unknown);
    ~Event();
    Event(Event const&) = delete;
    Event& operator=(Event const&) = delete;
    /// Within the work of a Graph, in its stream, each launch records it; who waits for it after a launch waits for that one.
    void record(Stream const& stream);
    void make_wait(Stream const& stream) const;  ///< what comes later in `stream` waits for the point
    void synchronize() const;                    ///< the host waits; at once if nothing was recorded
    bool is_reached() const;
    /// By the device's clock; on the host, that of record(). Waits for both, which keep their time.
    double seconds_since(Event const& earlier) const;

  private:
    void* handle_ = nullptr;
};

/// Work of one stream that is recorded once and then queued as a whole, at the cost of one launch.
class Graph {
  public:
    /// Records what `work` queues in `stream`; nothing of it is done. It may be queued by other threads, too. `work` may not
    /// wait for the device nor allocate, and memory, sizes and numbers that it uses are those of every launch. Throws what
    /// `work` throws, and Error(retry) if something in it cannot be recorded; then the stream is as it was.
    Graph(Stream const& stream, std::function<void()> work);
    ~Graph();
    Graph(Graph const&) = delete;
    Graph& operator=(Graph const&) = delete;
    void launch(Stream const& stream) const;

  private:
    void* handle_ = nullptr;      ///< a cudaGraphExec_t; null on the host
    std::function<void()> work_;  ///< on the host, where a launch does it again
};

enum class MemoryKind {
    device,
    pinned,  ///< of the host, locked, so that copies from and to it run beside both sides
};
/// Throws Error(do_not_requeue) if there is not enough of it.
void* allocate(MemoryKind kind, std::size_t size_bytes);
void release(MemoryKind kind, void* memory);

/// Zero-filled, 256-byte aligned.
template <typename T, MemoryKind kind>
class Memory {
  public:
    Memory() = default;
    explicit Memory(std::size_t count)
        : data_(count == 0 ? nullptr : static_cast<T*>(allocate(kind, count * sizeof(T)))), count_(count) {}
    ~Memory() { release(kind, data_); }
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }
    T* data() const { return data_; }
    std::size_t size() const { return count_; }

  private:
    T* data_ = nullptr;
    std::size_t count_ = 0;
};
using DeviceFloats = Memory<float, MemoryKind::device>;
using DeviceBytes = Memory<std::uint8_t, MemoryKind::device>;
using PinnedFloats = Memory<float, MemoryKind::pinned>;
using PinnedBytes = Memory<std::uint8_t, MemoryKind::pinned>;

/// Bytes of the device in use that nobody has taken; without limit on the host.
std::size_t free_device_memory();

/// Any direction between device and host memory.
void copy(void* to, void const* from, std::size_t size_bytes, Stream const& stream);
void fill_with_zero(float* data, std::size_t count, Stream const& stream);

/// A sum in a fixed order, in postfix: i >= 0 takes sources[i], -1 adds the two sums before it (the earlier
/// one left).
struct SumOrder {
    static constexpr int max_sources = 128;
    static constexpr int max_depth = 16;  ///< sums waiting at one time
    std::vector<std::int16_t> postfix;
};
/// out[i] = the sum of sources[...][i], i in [0, count). `out` may be one of the sources. Throws
/// Error(do_not_requeue) beyond the limits of SumOrder, Error(internal_error) if the order is malformed.
void sum_in_order(float* out, std::vector<float const*> const& sources, SumOrder const& order,
                  std::size_t count, Stream const& stream);

/// How a leaf of the tree meets what the buffer holds.
enum class LeafWrite { overwrite, add };
/// leaf[i] = scale * source[i], or leaf[i] + (scale * source[i]), unfused; a null source is zeros. *not_finite
/// becomes 1 if the source holds a NaN or an infinity and is left alone otherwise; null: nobody asks. All in
/// device memory. The bits of train::copy_scaled and add_scaled.
void write_leaf(float* leaf, float const* source, std::size_t count, float scale, LeafWrite write,
                float* not_finite, Stream const& stream);

enum class PieceType : std::uint32_t { float32, bfloat16 };
/// Numbers on their way into a leaf.
struct LeafPiece {
    float* leaf;
    void const* source;
    std::size_t count;
    PieceType type = PieceType::float32;
};
/// leaf[i] = source[i], which is exact, for each piece; *not_finite as in write_leaf. Starting a kernel for each of a network's
/// hundred tensors would take longer than copying them.
void write_pieces(std::vector<LeafPiece> const& pieces, float* not_finite, Stream const& stream);

/// rounded[i] = bfloat16_bits(values[i]).
void round_to_bfloat16(std::uint16_t* rounded, float const* values, std::size_t count, Stream const& stream);

/// sgd_update_element of every element, in one pass: the bits of optim::sgd_step.
void sgd_step(SgdTensors const& tensors, float const* gradient, std::size_t count, std::size_t num_decaying,
              SgdRates const& rates, Stream const& stream);
/// The bits of optim::update_average.
void update_average(float* average, float const* values, std::size_t count, float weight,
                    Stream const& stream);

/// write_image and the label for each sample of the batch; all in device memory.
void write_batch(BatchSource const& source, ImageFormat format, void* images, std::int64_t* labels_N,
                 Stream const& stream);

/// The bits of optim::update_running_mean and update_running_variance.
void update_running_mean(float* running, float const* batch, std::size_t count, Stream const& stream);
void update_running_variance(float* running, float const* batch, std::size_t count, Stream const& stream);

}  // namespace holdfast::cuda
