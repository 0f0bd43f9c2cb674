// SPDX-License-Identifier: Apache-2.0
#include "parallel/nccl_communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <dlfcn.h>
#include <exception>
#include <source_location>
#include <type_traits>

#include <nccl.h>

#include "core/error.hpp"
#include "core/stop_request.hpp"

namespace holdfast::parallel {
namespace {

// Where a GPU is, this is compiled against NVIDIA's header, elsewhere against nccl_declarations/nccl.h. Both must mean the same by
// what is used here, or a build without a GPU would test another program.
static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 &&
              ncclInternalError == 3 && ncclInvalidArgument == 4 && ncclInvalidUsage == 5 &&
              ncclRemoteError == 6 && ncclInProgress == 7);
static_assert(ncclFloat == 7 && ncclSum == 0 && NCCL_WIN_COLL_SYMMETRIC == 1);
static_assert(sizeof(ncclUniqueId) == 128 && sizeof(ncclResult_t) == sizeof(int));
static_assert(offsetof(ncclConfig_t, size) == 0 && offsetof(ncclConfig_t, magic) == 8 &&
              offsetof(ncclConfig_t, version) == 12 && offsetof(ncclConfig_t, blocking) == 16);
static_assert(NCCL_VERSION_CODE == NCCL_MAJOR * 10000 + NCCL_MINOR * 100 + NCCL_PATCH);
template <typename Function, typename... Arguments>
constexpr bool is_call = std::is_same_v<Function, ncclResult_t(Arguments...)>;
static_assert(is_call<decltype(ncclGetVersion), int*>);
static_assert(is_call<decltype(ncclGetUniqueId), ncclUniqueId*>);
static_assert(is_call<decltype(ncclCommInitRankConfig), ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*>);
static_assert(is_call<decltype(ncclCommGetAsyncError), ncclComm_t, ncclResult_t*>);
static_assert(
    is_call<decltype(ncclSend), void const*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t>);
static_assert(is_call<decltype(ncclRecv), void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t>);
static_assert(is_call<decltype(ncclAllGather), void const*, void*, std::size_t, ncclDataType_t, ncclComm_t,
                      cudaStream_t>);
static_assert(is_call<decltype(ncclAllReduce), void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t,
                      ncclComm_t, cudaStream_t>);
static_assert(is_call<decltype(ncclMemAlloc), void**, std::size_t>);
static_assert(is_call<decltype(ncclCommWindowRegister), ncclComm_t, void*, std::size_t, ncclWindow_t*, int>);
static_assert(is_call<decltype(ncclCommWindowDeregister), ncclComm_t, ncclWindow_t>);

struct Library {
    decltype(&ncclGetVersion) get_version;
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRankConfig) comm_init_rank_config;
    decltype(&ncclCommFinalize) comm_finalize;
    decltype(&ncclCommDestroy) comm_destroy;
    decltype(&ncclCommGetAsyncError) comm_get_async_error;
    decltype(&ncclGetErrorString) get_error_string;
    decltype(&ncclGetLastError) get_last_error;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) recv;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclAllReduce) all_reduce;
    // Null where the NCCL that is loaded has none.
    decltype(&ncclMemAlloc) mem_alloc;
    decltype(&ncclMemFree) mem_free;
    decltype(&ncclCommWindowRegister) comm_window_register;
    decltype(&ncclCommWindowDeregister) comm_window_deregister;

    Library() {
        constexpr char const* name = "libnccl.so.2";
        void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        require(handle != nullptr, ExitCode::do_not_requeue,
                "{} cannot be loaded: {} (GPUs exchange gradients through it); install NCCL where the loader "
                "finds it, beside LibTorch or in LD_LIBRARY_PATH",
                name, handle == nullptr ? dlerror() : "");
        auto const look_up_if_there = [&](auto& function, char const* symbol) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
            return function != nullptr;
        };
        auto const look_up = [&](auto& function, char const* symbol) {
            require(look_up_if_there(function, symbol), ExitCode::do_not_requeue,
                    "{} has no {} (it is too old for Holdfast); use NCCL {}.{} or newer", name, symbol,
                    NCCL_MAJOR, NCCL_MINOR);
        };
        look_up(get_version, "ncclGetVersion");
        look_up(get_unique_id, "ncclGetUniqueId");
        look_up(comm_init_rank_config, "ncclCommInitRankConfig");
        look_up(comm_finalize, "ncclCommFinalize");
        look_up(comm_destroy, "ncclCommDestroy");
        look_up(comm_get_async_error, "ncclCommGetAsyncError");
        look_up(get_error_string, "ncclGetErrorString");
        look_up(get_last_error, "ncclGetLastError");
        look_up(group_start, "ncclGroupStart");
        look_up(group_end, "ncclGroupEnd");
        look_up(send, "ncclSend");
        look_up(recv, "ncclRecv");
        look_up(all_gather, "ncclAllGather");
        look_up(all_reduce, "ncclAllReduce");
        look_up_if_there(mem_alloc, "ncclMemAlloc");
        look_up_if_there(mem_free, "ncclMemFree");
        look_up_if_there(comm_window_register, "ncclCommWindowRegister");
        look_up_if_there(comm_window_deregister, "ncclCommWindowDeregister");
    }

    bool has_registered_memory() const {
        return mem_alloc != nullptr && mem_free != nullptr && comm_window_register != nullptr &&
               comm_window_deregister != nullptr;
    }
};

Library const& nccl() {
    static Library const library;
    return library;
}

[[noreturn]] void fail_with(char const* what, char const* error, std::source_location where) {
    fail(ExitCode::retry,
         "{} failed: {} ({}; the GPUs can no longer talk to each other) try NCCL_DEBUG=INFO [{}:{}]", what,
         error, nccl().get_last_error(nullptr), where.file_name(), where.line());
}

void nccl_check(ncclResult_t code, char const* call,
                std::source_location where = std::source_location::current()) {
    if (code != ncclSuccess) fail_with(call, nccl().get_error_string(code), where);
}

std::string format_version(int version) {
    return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);  // since 2.9
}

cudaStream_t native(cuda::Stream const& stream) { return static_cast<cudaStream_t>(stream.get()); }

}  // namespace

NcclVersions nccl_versions() {
    int loaded = 0;
    nccl_check(nccl().get_version(&loaded), "ncclGetVersion");
    return {format_version(NCCL_VERSION_CODE), format_version(loaded)};
}

void require_nccl_as_built() {
    NcclVersions const versions = nccl_versions();
    require(versions.compiled == versions.loaded, ExitCode::do_not_requeue,
            "Holdfast was built with NCCL {} but {} is loaded (another version may mean other things by the "
            "same call); unset LD_LIBRARY_PATH and LD_PRELOAD, or build again with the LibTorch in use",
            versions.compiled, versions.loaded);
}

NcclCommunicator::NcclCommunicator(Communicator const& ranks) {
    ncclUniqueId id{};
    ranks.agree([&] {
        require_nccl_as_built();
        if (ranks.rank() == 0) nccl_check(nccl().get_unique_id(&id), "ncclGetUniqueId");
    });
    ranks.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    ranks.barrier();  // some MPI builds finish a broadcast only in their next call: NVIDIA/cuDecomp#24
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ranks.agree([&] {
        nccl_check(nccl().comm_init_rank_config(&comm_, ranks.size(), id, ranks.rank(), &config),
                   "ncclCommInitRankConfig");
    });
    install_stop_handlers();
}

NcclCommunicator::~NcclCommunicator() {
    // Destroying waits for the peers: while unwinding it is left to the end of the process.
    if (comm_ == nullptr || std::uncaught_exceptions() > 0) return;
    nccl().comm_finalize(comm_);
    nccl().comm_destroy(comm_);
}

void NcclCommunicator::group(std::function<void()> const& calls) const {
    nccl_check(nccl().group_start(), "ncclGroupStart");
    calls();
    nccl_check(nccl().group_end(), "ncclGroupEnd");
}

void NcclCommunicator::send(float const* data, std::size_t count, int peer,
                            cuda::Stream const& stream) const {
    nccl_check(nccl().send(data, count, ncclFloat, peer, comm_, native(stream)), "ncclSend");
}

void NcclCommunicator::receive(float* data, std::size_t count, int peer, cuda::Stream const& stream) const {
    nccl_check(nccl().recv(data, count, ncclFloat, peer, comm_, native(stream)), "ncclRecv");
}

void NcclCommunicator::all_gather(float const* mine, float* all, std::size_t count,
                                  cuda::Stream const& stream) const {
    nccl_check(nccl().all_gather(mine, all, count, ncclFloat, comm_, native(stream)), "ncclAllGather");
}

void NcclCommunicator::all_reduce(float* data, std::size_t count, cuda::Stream const& stream) const {
    nccl_check(nccl().all_reduce(data, data, count, ncclFloat, ncclSum, comm_, native(stream)),
               "ncclAllReduce");
}

char const* NcclCommunicator::trouble() const {
    ncclResult_t state = ncclSuccess;
    ncclResult_t const asked = nccl().comm_get_async_error(comm_, &state);
    if (asked != ncclSuccess) state = asked;
    return state == ncclSuccess || state == ncclInProgress ? nullptr : nccl().get_error_string(state);
}

void NcclCommunicator::require_no_trouble() const {
    if (char const* const error = trouble())
        fail_with("the gradient exchange", error, std::source_location::current());
}

NcclFloats::NcclFloats(Communicator const& ranks, NcclCommunicator const* nccl_communicator,
                       std::size_t count)
    : nccl_(nccl_communicator) {
    std::size_t const size_bytes = count * sizeof(float);
    // A failure shows as no memory: plain memory either is there or says why not.
    if (nccl_ != nullptr && nccl().has_registered_memory() && size_bytes > 0 &&
        nccl().mem_alloc(&from_nccl_, size_bytes) != ncclSuccess)
        from_nccl_ = nullptr;
    // Registered memory on one rank and other memory on another is undefined: NCCL's user guide, "User Buffer Registration".
    std::vector<std::string> const from_nccl = ranks.all_gather(from_nccl_ != nullptr ? "1" : "0");
    bool const use_nccl = std::ranges::find(from_nccl, "0") == from_nccl.end();
    if (!use_nccl && from_nccl_ != nullptr) {
        nccl().mem_free(from_nccl_);
        from_nccl_ = nullptr;
    }
    ranks.agree([&] {
        if (!use_nccl) {
            plain_ = cuda::DeviceFloats(count);
            data_ = plain_.data();
            return;
        }
        data_ = static_cast<float*>(from_nccl_);
        cuda::Stream const stream;
        cuda::fill_with_zero(data_, count, stream);
        stream.synchronize();
        ncclWindow_t window = nullptr;  // stays null where this machine has nothing to gain by it
        nccl_check(nccl().comm_window_register(nccl_->get(), from_nccl_, size_bytes, &window,
                                               NCCL_WIN_COLL_SYMMETRIC),
                   "ncclCommWindowRegister (NCCL_WIN_ENABLE=0 does without it)");
        window_ = window;
    });
}

NcclFloats::~NcclFloats() {
    // As for all device memory: freeing waits for the GPU.
    if (from_nccl_ == nullptr || std::uncaught_exceptions() > 0) return;
    if (window_ != nullptr) nccl().comm_window_deregister(nccl_->get(), static_cast<ncclWindow_t>(window_));
    nccl().mem_free(from_nccl_);
}

}  // namespace holdfast::parallel
