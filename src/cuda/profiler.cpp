// SPDX-License-Identifier: Apache-2.0
#include "cuda/profiler.hpp"

#ifdef HOLDFAST_WITH_CUDA
#if __has_include(<cuda_profiler_api.h>)  // a package of its own
#include <cuda_profiler_api.h>
#define HOLDFAST_CAN_START_PROFILERS
#endif
#include <nvtx3/nvToolsExt.h>
#endif

namespace holdfast::cuda {

#ifdef HOLDFAST_WITH_CUDA

namespace {

nvtxDomainHandle_t domain() {
    static nvtxDomainHandle_t const handle = nvtxDomainCreateA("holdfast");
    return handle;
}

}  // namespace

void begin_range(char const* name, std::int64_t number) {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    attributes.payload.llValue = number;
    nvtxDomainRangePushEx(domain(), &attributes);
}

void end_range() { nvtxDomainRangePop(domain()); }

// A profiler that cannot be started is no reason to stop a training.
void start_profiler() {
#ifdef HOLDFAST_CAN_START_PROFILERS
    cudaProfilerStart();
#endif
}
void stop_profiler() {
#ifdef HOLDFAST_CAN_START_PROFILERS
    cudaProfilerStop();
#endif
}

#else

void begin_range(char const*, std::int64_t) {}
void end_range() {}
void start_profiler() {}
void stop_profiler() {}

#endif

}  // namespace holdfast::cuda
