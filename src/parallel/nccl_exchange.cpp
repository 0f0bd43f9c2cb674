// SPDX-License-Identifier: Apache-2.0
#include "parallel/nccl_exchange.hpp"

#include <dlfcn.h>
#include <exception>
#include <source_location>
#include <thread>

#include <nccl.h>

#include "core/error.hpp"
#include "core/stop_request.hpp"
#include "parallel/host_gradients.hpp"

namespace holdfast::parallel {
namespace {

/// NCCL's functions, from the libnccl that is in the process already (LibTorch's, on a GPU) or that the loader finds. Not
/// linked, so that there is never another one than LibTorch's, and every build can have this exchange.
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

    Library() {
        constexpr char const* name = "libnccl.so.2";
        void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        require(handle != nullptr, ExitCode::do_not_requeue,
                "{} cannot be loaded: {} (GPUs exchange gradients through it); install NCCL where the loader "
                "finds it, beside LibTorch or in LD_LIBRARY_PATH",
                name, handle == nullptr ? dlerror() : "");
        auto const look_up = [&](auto& function, char const* symbol) {
            void* const address = dlsym(handle, symbol);
            require(address != nullptr, ExitCode::do_not_requeue,
                    "{} has no {} (it is too old for Holdfast); use NCCL {}.{} or newer", name, symbol,
                    NCCL_MAJOR, NCCL_MINOR);
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
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
    }
};

Library const& nccl() {
    static Library const library;
    return library;
}

void nccl_check(ncclResult_t code, char const* call,
                std::source_location where = std::source_location::current()) {
    if (code == ncclSuccess) return;
    fail(ExitCode::retry,
         "{} failed: {} ({}; the GPUs can no longer talk to each other) try NCCL_DEBUG=INFO [{}:{}]", call,
         nccl().get_error_string(code), nccl().get_last_error(nullptr), where.file_name(), where.line());
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

struct NcclExchange::Handle {
    ncclComm_t comm = nullptr;

    ~Handle() {
        // Destroying waits for the peers: while unwinding it is left to the end of the process.
        if (comm == nullptr || std::uncaught_exceptions() > 0) return;
        nccl().comm_finalize(comm);
        nccl().comm_destroy(comm);
    }
};

NcclExchange::NcclExchange(Communicator const& communicator, ExchangeConfig const& config,
                           cuda::Stream const& stream)
    : rank_(communicator.rank()),
      num_ranks_(communicator.size()),
      reduction_(config.reduction),
      num_floats_(config.num_floats),
      chunk_floats_((config.num_floats / 16 + static_cast<std::size_t>(num_ranks_) - 1) /
                    static_cast<std::size_t>(num_ranks_) * 16),
      stream_(stream),
      nccl_(std::make_unique<Handle>()) {
    std::vector<BufferPlan> const plans = collective_plans(communicator, config);
    std::vector<ReplicaRange> sources;
    for (BufferPlan const& plan : plans) {
        num_nodes_.push_back(static_cast<int>(plan.partial_sums.size()));
        for (PartialSum const& sum : plan.partial_sums) sources.push_back({sum.begin, sum.end});
    }
    plan_ = plans[static_cast<std::size_t>(rank_)];
    order_.postfix = postfix_order(config.num_replicas, sources);
    ncclUniqueId id{};
    communicator.agree([&] {
        require_nccl_as_built();
        std::size_t const padded = chunk_floats_ * static_cast<std::size_t>(num_ranks_);
        for (int i = 0; i < plan_.num_buffers; ++i) buffers_.emplace_back(padded);
        received_ = cuda::DeviceFloats((sources.size() - plan_.partial_sums.size()) * chunk_floats_);
        sum_ = cuda::DeviceFloats(padded);
        if (rank_ == 0) nccl_check(nccl().get_unique_id(&id), "ncclGetUniqueId");
    });
    communicator.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    communicator.barrier();  // some MPI builds finish a broadcast only in their next call: NVIDIA/cuDecomp#24
    ncclConfig_t nccl_config = NCCL_CONFIG_INITIALIZER;
    nccl_config.blocking = 1;
    communicator.agree([&] {
        nccl_check(nccl().comm_init_rank_config(&nccl_->comm, num_ranks_, id, rank_, &nccl_config),
                   "ncclCommInitRankConfig");
    });
    install_stop_handlers();
}

NcclExchange::~NcclExchange() = default;

std::span<float> NcclExchange::buffer(int index) {
    return {buffers_[static_cast<std::size_t>(index)].data(), num_floats_};
}

void NcclExchange::gather_exact_sum() {
    auto const chunk = [&](float* data, int owner) {
        return data + static_cast<std::size_t>(owner) * chunk_floats_;
    };
    std::vector<float const*> sources;
    float* place = received_.data();
    nccl_check(nccl().group_start(), "ncclGroupStart");
    for (int peer = 0; peer < num_ranks_; ++peer) {
        for (PartialSum const& partial : plan_.partial_sums) {
            float* const data = buffers_[static_cast<std::size_t>(partial.buffer)].data();
            if (peer == rank_) {
                sources.push_back(chunk(data, rank_));
            } else {
                nccl_check(nccl().send(chunk(data, peer), chunk_floats_, ncclFloat, peer, nccl_->comm,
                                       native(stream_)),
                           "ncclSend");
            }
        }
        for (int node = 0; peer != rank_ && node < num_nodes_[static_cast<std::size_t>(peer)]; ++node) {
            nccl_check(nccl().recv(place, chunk_floats_, ncclFloat, peer, nccl_->comm, native(stream_)),
                       "ncclRecv");
            sources.push_back(place);
            place += chunk_floats_;
        }
    }
    nccl_check(nccl().group_end(), "ncclGroupEnd");
    float* const mine = chunk(sum_.data(), rank_);
    cuda::sum_in_order(mine, sources, order_, chunk_floats_, stream_);
    nccl_check(nccl().all_gather(mine, sum_.data(), chunk_floats_, ncclFloat, nccl_->comm, native(stream_)),
               "ncclAllGather");
}

void NcclExchange::gather_fast_sum() {
    std::vector<float const*> sources;
    cuda::SumOrder in_turn;
    for (PartialSum const& partial : plan_.partial_sums) {
        in_turn.postfix.push_back(static_cast<std::int16_t>(sources.size()));
        if (!sources.empty()) in_turn.postfix.push_back(-1);
        sources.push_back(buffers_[static_cast<std::size_t>(partial.buffer)].data());
    }
    cuda::sum_in_order(sum_.data(), sources, in_turn, num_floats_, stream_);
    nccl_check(nccl().all_reduce(sum_.data(), sum_.data(), num_floats_, ncclFloat, ncclSum, nccl_->comm,
                                 native(stream_)),
               "ncclAllReduce");
}

void NcclExchange::reduce(Consume const& consume) {
    if (reduction_ == Reduction::exact) {
        gather_exact_sum();
    } else {
        gather_fast_sum();
    }
    consume(0, {sum_.data(), num_floats_});
    wait();
}

void NcclExchange::wait() {
    done_.record(stream_);
    while (true) {
        bool const is_done = done_.is_reached();
        // After an error the GPU may never get there; what it computed, if it did, is not the sum.
        ncclResult_t state = ncclSuccess;
        nccl_check(nccl().comm_get_async_error(nccl_->comm, &state), "ncclCommGetAsyncError");
        nccl_check(state, "the gradient exchange");
        if (is_done) return;
        std::this_thread::yield();
    }
}

}  // namespace holdfast::parallel
