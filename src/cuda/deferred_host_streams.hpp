// SPDX-License-Identifier: Apache-2.0
// A switch of the host implementation, for tests. Streams there do their work at once, which hides that somebody should have
// waited; these do it as late as they may, so that who does not wait finds that nothing has been done.
#pragma once

#include <functional>

namespace holdfast::cuda {

/// What Stream::get() gives for such a stream (null for others): where a library that queues work in the streams of its caller puts
/// it, in tests.
class HostQueue {
  public:
    virtual ~HostQueue() = default;
    virtual void add(std::function<void()> work) = 0;
};

/// While it lives, new streams put their work off until the host or another stream waits for it. One at a time.
class DeferredHostStreams {
  public:
    DeferredHostStreams();
    ~DeferredHostStreams();
    DeferredHostStreams(DeferredHostStreams const&) = delete;
    DeferredHostStreams& operator=(DeferredHostStreams const&) = delete;
};

}  // namespace holdfast::cuda
