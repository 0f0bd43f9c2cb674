// SPDX-License-Identifier: Apache-2.0
// Work on a device that is the same each time but for what its memory holds. A few times it is queued piece by piece; then it is
// recorded as a CUDA graph, which is queued as a whole and so costs the host next to nothing. The bits are the same
// (docs/decisions/014-cuda-graphs.md).
#pragma once

#include <functional>
#include <memory>

#include "train/compute_device.hpp"

namespace holdfast::train {

class CapturedWork {
  public:
    /// `work` queues all it does in the device's stream, LibTorch's part too, and uses no memory that others may give back.
    CapturedWork(ComputeDevice device, std::function<void()> work);
    ~CapturedWork();
    CapturedWork(CapturedWork&&) noexcept;

    /// Queues the work. Throws what it throws. If it cannot be recorded: Error(do_not_requeue) with CudaGraphs::on, otherwise a
    /// warning, once, and it goes on piece by piece.
    void run();
    /// Whether run() replays a graph from now on.
    bool is_recorded() const { return recording_ != nullptr; }

  private:
    struct Recording;
    void record();

    ComputeDevice device_;
    std::function<void()> work_;
    int num_runs_ = 0;  ///< before it is recorded
    std::unique_ptr<Recording> recording_;
};

}  // namespace holdfast::train
