// SPDX-License-Identifier: Apache-2.0
// Compiled with -fmad=false: fused only where written.
#include <algorithm>
#include <cstring>
#include <cuda_runtime.h>
#include <exception>
#include <utility>

#include "core/error.hpp"
#include "cuda/device_runtime.hpp"
#include "cuda/out_of_memory.hpp"
#include "cuda/sum_order_check.hpp"
#include "cuda/sum_stack.hpp"

namespace holdfast::cuda {
namespace {

void cuda_check(cudaError_t code, char const* call) {
    if (code != cudaSuccess)
        fail(ExitCode::retry, "{} failed: {} (the GPU or its driver is in trouble); see nvidia-smi", call,
             cudaGetErrorString(code));
}

cudaStream_t native(Stream const& stream) { return static_cast<cudaStream_t>(stream.get()); }

constexpr int threads_per_block = 256;

unsigned num_blocks(std::size_t count) {
    // Several elements a thread beyond this; enough blocks for every multiprocessor of any GPU.
    return static_cast<unsigned>(
        std::min<std::size_t>((count + threads_per_block - 1) / threads_per_block, 4096));
}

__device__ std::size_t first_element() {
    return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::size_t element_stride() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

struct SumArguments {
    float const* sources[SumOrder::max_sources];
    std::int16_t postfix[2 * SumOrder::max_sources];
    int num_steps;
};
static_assert(sizeof(SumArguments) < 4000, "kernel arguments are limited to 4 KB");

template <int max_depth>
__global__ void sum_kernel(float* out, SumArguments const arguments, std::size_t count) {
    for (std::size_t i = first_element(); i < count; i += element_stride()) {
        SumStack<max_depth> sums;
        for (int step = 0; step < arguments.num_steps; ++step) {
            int const source = arguments.postfix[step];
            if (source >= 0)
                sums.push(arguments.sources[source][i]);
            else
                sums.add();
        }
        out[i] = sums.newest();
    }
}

__device__ bool is_multiple(void const* address, std::size_t unit) {
    return reinterpret_cast<std::size_t>(address) % unit == 0;
}

/// `four(i)` for the elements 4 i to 4 i + 3, where they lie so, `one(i)` for the rest: of single ones too few are under way to keep
/// the memory busy.
template <typename Four, typename One>
__device__ void by_fours(std::size_t count, bool is_aligned, Four four, One one) {
    std::size_t const fours = is_aligned ? count / 4 : 0;
    for (std::size_t i = first_element(); i < fours; i += element_stride()) four(i);
    for (std::size_t i = 4 * fours + first_element(); i < count; i += element_stride()) one(i);
}

__device__ bool are_finite(float4 const& values) {
    return isfinite(values.x) && isfinite(values.y) && isfinite(values.z) && isfinite(values.w);
}

__global__ void leaf_kernel(float* leaf, float const* source, std::size_t count, float scale, LeafWrite write,
                            float* not_finite) {
    bool is_finite = true;
    auto const four = [&](std::size_t i) {
        float4 const values =
            source != nullptr ? reinterpret_cast<float4 const*>(source)[i] : make_float4(0, 0, 0, 0);
        is_finite = is_finite && are_finite(values);
        float4 result = make_float4(__fmul_rn(scale, values.x), __fmul_rn(scale, values.y),
                                    __fmul_rn(scale, values.z), __fmul_rn(scale, values.w));
        if (write == LeafWrite::add) {
            float4 const old = reinterpret_cast<float4 const*>(leaf)[i];
            result = make_float4(__fadd_rn(old.x, result.x), __fadd_rn(old.y, result.y),
                                 __fadd_rn(old.z, result.z), __fadd_rn(old.w, result.w));
        }
        reinterpret_cast<float4*>(leaf)[i] = result;
    };
    auto const one = [&](std::size_t i) {
        float const value = source != nullptr ? source[i] : 0.0f;
        is_finite = is_finite && isfinite(value);
        float const scaled = __fmul_rn(scale, value);
        leaf[i] = write == LeafWrite::add ? __fadd_rn(leaf[i], scaled) : scaled;
    };
    by_fours(count, is_multiple(leaf, sizeof(float4)) && is_multiple(source, sizeof(float4)), four, one);
    if (!is_finite && not_finite != nullptr) *not_finite = 1.0f;  // whoever comes last: the same 1
}

/// A LeafPiece, in less memory.
struct PackedPiece {
    float* leaf;
    void const* source;
    std::uint32_t count;
    PieceType type;
};
struct PieceArguments {
    static constexpr std::size_t max_pieces = 128;
    PackedPiece pieces[max_pieces];
};
static_assert(sizeof(PieceArguments) < 4000, "kernel arguments are limited to 4 KB");
/// Enough for the largest tensors, few enough for the many small ones, whose other blocks find nothing to do.
constexpr unsigned blocks_per_piece = 64;

__device__ float4 four_values(PackedPiece const& piece, std::size_t i) {
    if (piece.type == PieceType::float32) return static_cast<float4 const*>(piece.source)[i];
    ushort4 const bits = static_cast<ushort4 const*>(piece.source)[i];
    return make_float4(float_of_bfloat16(bits.x), float_of_bfloat16(bits.y), float_of_bfloat16(bits.z),
                       float_of_bfloat16(bits.w));
}

__device__ float one_value(PackedPiece const& piece, std::size_t i) {
    return piece.type == PieceType::float32
               ? static_cast<float const*>(piece.source)[i]
               : float_of_bfloat16(static_cast<std::uint16_t const*>(piece.source)[i]);
}

/// blockIdx.y: the piece.
__global__ void pieces_kernel(__grid_constant__ PieceArguments const arguments, float* not_finite) {
    PackedPiece const piece = arguments.pieces[blockIdx.y];
    bool const is_aligned =
        is_multiple(piece.leaf, sizeof(float4)) &&
        is_multiple(piece.source, piece.type == PieceType::float32 ? sizeof(float4) : sizeof(ushort4));
    bool is_finite = true;
    auto const four = [&](std::size_t i) {
        float4 const values = four_values(piece, i);
        is_finite = is_finite && are_finite(values);
        reinterpret_cast<float4*>(piece.leaf)[i] = values;
    };
    auto const one = [&](std::size_t i) {
        float const value = one_value(piece, i);
        is_finite = is_finite && isfinite(value);
        piece.leaf[i] = value;
    };
    by_fours(piece.count, is_aligned, four, one);
    if (!is_finite && not_finite != nullptr) *not_finite = 1.0f;  // whoever comes last: the same 1
}

__global__ void round_kernel(std::uint16_t* rounded, float const* values, std::size_t count) {
    auto const four = [&](std::size_t i) {
        float4 const exact = reinterpret_cast<float4 const*>(values)[i];
        reinterpret_cast<ushort4*>(rounded)[i] = make_ushort4(bfloat16_bits(exact.x), bfloat16_bits(exact.y),
                                                              bfloat16_bits(exact.z), bfloat16_bits(exact.w));
    };
    by_fours(count, is_multiple(rounded, sizeof(ushort4)) && is_multiple(values, sizeof(float4)), four,
             [&](std::size_t i) { rounded[i] = bfloat16_bits(values[i]); });
}

__global__ void running_mean_kernel(float* running, float const* batch, std::size_t count) {
    for (std::size_t i = first_element(); i < count; i += element_stride())
        running[i] = __fadd_rn(__fmul_rn(0.1f, batch[i]), __fmul_rn(0.9f, running[i]));
}

__global__ void running_variance_kernel(float* running, float const* batch, std::size_t count) {
    for (std::size_t i = first_element(); i < count; i += element_stride())
        running[i] = __fmaf_rn(0.1f, batch[i], __fmul_rn(0.9f, running[i]));
}

__device__ float4& four_of(float* values, std::size_t i) { return reinterpret_cast<float4*>(values)[i]; }

__global__ void sgd_kernel(SgdTensors const tensors, float const* gradient, std::size_t count,
                           std::size_t num_decaying, SgdRates const rates) {
    bool const is_aligned =
        is_multiple(tensors.parameters, sizeof(float4)) && is_multiple(tensors.momentum, sizeof(float4)) &&
        is_multiple(tensors.average, sizeof(float4)) && is_multiple(gradient, sizeof(float4));
    auto const four = [&](std::size_t i) {
        float4 parameters = four_of(tensors.parameters, i);
        float4 velocities = four_of(tensors.momentum, i);
        float4 const slopes = reinterpret_cast<float4 const*>(gradient)[i];
        auto const decays = [&](int of_four) {
            return 4 * i + of_four < num_decaying && rates.weight_decay != 0;
        };
        sgd_update(parameters.x, velocities.x, slopes.x, decays(0), rates);
        sgd_update(parameters.y, velocities.y, slopes.y, decays(1), rates);
        sgd_update(parameters.z, velocities.z, slopes.z, decays(2), rates);
        sgd_update(parameters.w, velocities.w, slopes.w, decays(3), rates);
        four_of(tensors.parameters, i) = parameters;
        four_of(tensors.momentum, i) = velocities;
        if (tensors.average == nullptr) return;
        float4 average = four_of(tensors.average, i);
        average.x = moved_average(average.x, parameters.x, rates.average_weight);
        average.y = moved_average(average.y, parameters.y, rates.average_weight);
        average.z = moved_average(average.z, parameters.z, rates.average_weight);
        average.w = moved_average(average.w, parameters.w, rates.average_weight);
        four_of(tensors.average, i) = average;
    };
    by_fours(count, is_aligned, four,
             [&](std::size_t i) { sgd_update_element(tensors, gradient, i, num_decaying, rates); });
}

__global__ void average_kernel(float* average, float const* values, std::size_t count, float weight) {
    for (std::size_t i = first_element(); i < count; i += element_stride())
        average[i] = moved_average(average[i], values[i], weight);
}

/// A block for each image. __grid_constant__: indexed where it lies, not copied to a stack first.
__global__ void batch_kernel(__grid_constant__ BatchSource const source, ImageFormat const format,
                             void* images, std::int64_t* labels_N) {
    std::int64_t const n = blockIdx.x;
    write_image(source, format, images, n, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
    if (threadIdx.x == 0) labels_N[n] = source.labels_N[n];
}

}  // namespace

bool supports_gpus() { return true; }

std::string runtime_name() {
    int version = 0;
    cuda_check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
    return fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

std::vector<std::string> visible_device_uuids() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess)
        return {};  // no GPU or no driver: the caller says what that means
    std::vector<std::string> uuids;
    for (int device = 0; device < count; ++device) {
        cudaDeviceProp properties{};
        cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
        std::string uuid;
        for (char const byte : properties.uuid.bytes)
            uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
        uuids.push_back(uuid);
    }
    return uuids;
}

std::string device_name(int device) {
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    return properties.name;
}

std::size_t device_memory_in_use() {
    std::size_t free = 0;
    std::size_t total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return total - free;
}

void use_device(int device) { cuda_check(cudaSetDevice(device), "cudaSetDevice"); }

Stream::Stream(StreamPriority priority) {
    int least = 0;
    int greatest = 0;
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                            priority == StreamPriority::high ? greatest : least),
               "cudaStreamCreateWithPriority");
    handle_ = stream;
}

Stream::~Stream() { cudaStreamDestroy(static_cast<cudaStream_t>(handle_)); }

void Stream::synchronize() const {
    cuda_check(cudaStreamSynchronize(native(*this)), "cudaStreamSynchronize");
}

Event::Event(EventTime time) {
    cudaEvent_t event = nullptr;
    unsigned const flags = time == EventTime::kept ? cudaEventDefault : cudaEventDisableTiming;
    cuda_check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
    handle_ = event;
}

Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(handle_)); }

void Event::record(Stream const& stream) {
    // What is recorded without the flag while a graph is made exists within that graph only; the flag is for graphs only.
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(native(stream), &status), "cudaStreamIsCapturing");
    unsigned const flags =
        status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
    cuda_check(cudaEventRecordWithFlags(static_cast<cudaEvent_t>(handle_), native(stream), flags),
               "cudaEventRecordWithFlags");
}

void Event::make_wait(Stream const& stream) const {
    cuda_check(cudaStreamWaitEvent(native(stream), static_cast<cudaEvent_t>(handle_), 0),
               "cudaStreamWaitEvent");
}

void Event::synchronize() const {
    cuda_check(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)), "cudaEventSynchronize");
}

double Event::seconds_since(Event const& earlier) const {
    earlier.synchronize();
    synchronize();
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier.handle_),
                                    static_cast<cudaEvent_t>(handle_)),
               "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
}

bool Event::is_reached() const {
    cudaError_t const status = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
    if (status == cudaErrorNotReady) return false;
    cuda_check(status, "cudaEventQuery");
    return true;
}

Graph::Graph(Stream const& stream, std::function<void()> work) {
    // ThreadLocal: other threads may go on allocating and asking for events; they are not part of this.
    cuda_check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    cudaGraph_t recorded = nullptr;
    try {
        work();
    } catch (...) {
        cudaStreamEndCapture(native(stream), &recorded);
        if (recorded != nullptr) cudaGraphDestroy(recorded);
        cudaGetLastError();  // what ended the recording is told by the exception
        throw;
    }
    cuda_check(cudaStreamEndCapture(native(stream), &recorded), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    cudaError_t const status = cudaGraphInstantiateWithFlags(&executable, recorded, 0);
    cudaGraphDestroy(recorded);
    cuda_check(status, "cudaGraphInstantiateWithFlags");
    handle_ = executable;
}

Graph::~Graph() {
    // As DeviceFloats: it may be under way, and wait for a lost peer.
    if (std::uncaught_exceptions() == 0) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_));
}

void Graph::launch(Stream const& stream) const {
    cuda_check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), native(stream)), "cudaGraphLaunch");
}

void* allocate(MemoryKind kind, std::size_t size_bytes) {
    void* memory = nullptr;
    if (kind == MemoryKind::pinned) {
        cudaError_t const status = cudaHostAlloc(&memory, size_bytes, cudaHostAllocDefault);
        require(
            status != cudaErrorMemoryAllocation, ExitCode::do_not_requeue,
            "the host has no {} MB left that can be locked (copies from and to the GPU need them); give the "
            "job more memory",
            size_bytes >> 20);
        cuda_check(status, "cudaHostAlloc");
        std::memset(memory, 0, size_bytes);
        return memory;
    }
    cudaError_t const status = cudaMalloc(&memory, size_bytes);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();  // else the next kernel's check would tell it again
        MemoryInfo there;
        cudaMemGetInfo(&there.free_bytes, &there.total_bytes);
        fail_out_of_memory(size_bytes, there);
    }
    cuda_check(status, "cudaMalloc");
    // cudaMemset does not wait, and no stream of ours waits for the one it is queued in.
    cuda_check(cudaMemset(memory, 0, size_bytes), "cudaMemset");
    cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    return memory;
}

void release(MemoryKind kind, void* memory) {
    // Freeing waits for the GPU, which may itself wait for a lost peer: while unwinding it is left to the process's end.
    if (memory == nullptr || std::uncaught_exceptions() > 0) return;
    if (kind == MemoryKind::pinned)
        cudaFreeHost(memory);
    else
        cudaFree(memory);
}

std::size_t free_device_memory() {
    std::size_t free_bytes = 0;
    std::size_t all_bytes = 0;
    cuda_check(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
    return free_bytes;
}

void copy(void* to, void const* from, std::size_t size_bytes, Stream const& stream) {
    cuda_check(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, native(stream)), "cudaMemcpyAsync");
}

void fill_with_zero(float* data, std::size_t count, Stream const& stream) {
    cuda_check(cudaMemsetAsync(data, 0, count * sizeof(float), native(stream)), "cudaMemsetAsync");
}

void sum_in_order(float* out, std::vector<float const*> const& sources, SumOrder const& order,
                  std::size_t count, Stream const& stream) {
    int const depth = require_valid_order(sources, order);
    if (count == 0) return;
    SumArguments arguments{};
    std::copy(sources.begin(), sources.end(), arguments.sources);
    // Each source once and an add between them: fits, since the number of sources was checked.
    require(order.postfix.size() <= 2 * SumOrder::max_sources, ExitCode::internal_error,
            "an order of summation of {} steps", order.postfix.size());
    std::copy(order.postfix.begin(), order.postfix.end(), arguments.postfix);
    arguments.num_steps = static_cast<int>(order.postfix.size());
    // Moving the sums that wait costs as many instructions as there may be; with 4, eight gradients can be added.
    auto* const kernel = depth <= 4 ? sum_kernel<4> : sum_kernel<SumOrder::max_depth>;
    kernel<<<num_blocks(count), threads_per_block, 0, native(stream)>>>(out, arguments, count);
    cuda_check(cudaGetLastError(), "sum_kernel");
}

void write_leaf(float* leaf, float const* source, std::size_t count, float scale, LeafWrite write,
                float* not_finite, Stream const& stream) {
    if (count == 0) return;
    leaf_kernel<<<num_blocks(count), threads_per_block, 0, native(stream)>>>(leaf, source, count, scale,
                                                                             write, not_finite);
    cuda_check(cudaGetLastError(), "leaf_kernel");
}

void write_pieces(std::vector<LeafPiece> const& pieces, float* not_finite, Stream const& stream) {
    for (std::size_t begin = 0; begin < pieces.size(); begin += PieceArguments::max_pieces) {
        std::size_t const count = std::min(pieces.size() - begin, PieceArguments::max_pieces);
        PieceArguments arguments{};
        for (std::size_t i = 0; i < count; ++i) {
            LeafPiece const& piece = pieces[begin + i];
            require(piece.count <= UINT32_MAX, ExitCode::internal_error, "a tensor of {} numbers",
                    piece.count);
            arguments.pieces[i] = {piece.leaf, piece.source, static_cast<std::uint32_t>(piece.count),
                                   piece.type};
        }
        dim3 const blocks(blocks_per_piece, static_cast<unsigned>(count));
        pieces_kernel<<<blocks, threads_per_block, 0, native(stream)>>>(arguments, not_finite);
        cuda_check(cudaGetLastError(), "pieces_kernel");
    }
}

void round_to_bfloat16(std::uint16_t* rounded, float const* values, std::size_t count, Stream const& stream) {
    if (count == 0) return;
    round_kernel<<<num_blocks(count), threads_per_block, 0, native(stream)>>>(rounded, values, count);
    cuda_check(cudaGetLastError(), "round_kernel");
}

void sgd_step(SgdTensors const& tensors, float const* gradient, std::size_t count, std::size_t num_decaying,
              SgdRates const& rates, Stream const& stream) {
    if (count == 0) return;
    sgd_kernel<<<num_blocks(count), threads_per_block, 0, native(stream)>>>(tensors, gradient, count,
                                                                            num_decaying, rates);
    cuda_check(cudaGetLastError(), "sgd_kernel");
}

void update_average(float* average, float const* values, std::size_t count, float weight,
                    Stream const& stream) {
    if (count == 0) return;
    average_kernel<<<num_blocks(count), threads_per_block, 0, native(stream)>>>(average, values, count,
                                                                                weight);
    cuda_check(cudaGetLastError(), "average_kernel");
}

void write_batch(BatchSource const& source, ImageFormat format, void* images, std::int64_t* labels_N,
                 Stream const& stream) {
    if (source.count == 0) return;
    batch_kernel<<<static_cast<unsigned>(source.count), threads_per_block, 0, native(stream)>>>(
        source, format, images, labels_N);
    cuda_check(cudaGetLastError(), "batch_kernel");
}

void update_running_mean(float* running, float const* batch, std::size_t count, Stream const& stream) {
    if (count == 0) return;
    running_mean_kernel<<<num_blocks(count), threads_per_block, 0, native(stream)>>>(running, batch, count);
    cuda_check(cudaGetLastError(), "running_mean_kernel");
}

void update_running_variance(float* running, float const* batch, std::size_t count, Stream const& stream) {
    if (count == 0) return;
    running_variance_kernel<<<num_blocks(count), threads_per_block, 0, native(stream)>>>(running, batch,
                                                                                         count);
    cuda_check(cudaGetLastError(), "running_variance_kernel");
}

}  // namespace holdfast::cuda
