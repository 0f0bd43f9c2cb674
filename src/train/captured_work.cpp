// SPDX-License-Identifier: Apache-2.0
#include "train/captured_work.hpp"

#include <exception>
#include <utility>

#include "core/error.hpp"
#include "core/log.hpp"

#ifdef HOLDFAST_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace holdfast::train {
namespace {

/// Libraries set themselves up, choose algorithms and take workspaces in the first passes, which cannot be recorded. Source of
/// the number: PyTorch's example of a whole network captured ("CUDA semantics", CUDA graphs).
constexpr int runs_before_recording = 3;

#ifdef HOLDFAST_WITH_CUDA

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

Allocator& allocator() {
    // What LibTorch has registered for GPUs is one: c10/cuda/CUDACachingAllocator.cpp.
    return static_cast<Allocator&>(*c10::GetAllocator(c10::DeviceType::CUDA));
}

/// Newer LibTorch is also told of the recording itself.
template <typename AnyAllocator>
void tell_begin(AnyAllocator& any, c10::DeviceIndex gpu) {
    if constexpr (requires { any.markCaptureBegin(gpu); }) any.markCaptureBegin(gpu);
}
template <typename AnyAllocator>
void tell_end(AnyAllocator& any, c10::DeviceIndex gpu) {
    if constexpr (requires { any.markCaptureEnd(gpu); }) any.markCaptureEnd(gpu);
}

/// Memory of LibTorch's that is kept for graphs: what a graph computes in has the same addresses at each launch, and nobody else
/// gets it in between. One for all graphs of a GPU: they run one after the other and leave nothing there. It is what
/// at::cuda::CUDAGraph does, which would have to be linked (docs/decisions/010-loading-cuda.md).
class GraphMemory {
  public:
    explicit GraphMemory(ComputeDevice device) : gpu_(static_cast<c10::DeviceIndex>(device.gpu)) {
        if (gpu_ < 0) return;
        allocator().emptyCache();  // what the passes before used is free, but could not be given to a graph
        cudaStream_t const ours = static_cast<cudaStream_t>(device.stream->get());
        allocator().beginAllocateToPool(gpu_, pool, [ours](cudaStream_t stream) { return stream == ours; });
        is_taken_ = is_open_ = true;
        tell_begin(allocator(), gpu_);
    }
    /// No more memory is taken.
    void close() {
        if (!std::exchange(is_open_, false)) return;
        tell_end(allocator(), gpu_);
        allocator().endAllocateToPool(gpu_, pool);
    }
    ~GraphMemory() {
        close();
        if (is_taken_) allocator().releasePool(gpu_, pool);
    }
    GraphMemory(GraphMemory const&) = delete;
    GraphMemory& operator=(GraphMemory const&) = delete;

  private:
    static constexpr c10::MempoolId_t pool{1, 0};  // no other graphs are made in this process

    c10::DeviceIndex gpu_;
    bool is_taken_ = false;
    bool is_open_ = false;
};

#else

class GraphMemory {
  public:
    explicit GraphMemory(ComputeDevice) {}
    void close() {}
};

#endif

}  // namespace

struct CapturedWork::Recording {
    Recording(ComputeDevice device, std::function<void()> work)
        : memory(device), graph(*device.stream, std::move(work)) {
        memory.close();
    }
    GraphMemory memory;
    cuda::Graph graph;
};

CapturedWork::CapturedWork(ComputeDevice device, std::function<void()> work)
    : device_(device), work_(std::move(work)) {}
CapturedWork::~CapturedWork() = default;
CapturedWork::CapturedWork(CapturedWork&&) noexcept = default;

void CapturedWork::run() {
    if (!recording_ && device_.graphs != CudaGraphs::off && num_runs_++ == runs_before_recording) record();
    if (recording_)
        recording_->graph.launch(*device_.stream);
    else
        work_();
}

void CapturedWork::record() {
    try {
        recording_ = std::make_unique<Recording>(device_, work_);
    } catch (std::exception const& error) {
        require(device_.graphs == CudaGraphs::automatic, ExitCode::do_not_requeue,
                "--cuda-graph on: forward and backward cannot be recorded ({}); use --cuda-graph off, which "
                "gives the same result",
                error.what());
        log::warning("forward and backward cannot be recorded as a CUDA graph: {}; going on without",
                     error.what());
        device_.graphs = CudaGraphs::off;
    }
}

}  // namespace holdfast::train
