// SPDX-License-Identifier: Apache-2.0
#include "parallel/nccl_exchange.hpp"

#include <cuda_runtime_api.h>
#include <exception>
#include <source_location>

#include <nccl.h>

#include "core/error.hpp"
#include "core/stop_request.hpp"
#include "parallel/host_gradients.hpp"

namespace holdfast::parallel {
namespace {

void nccl_check(ncclResult_t code, char const* call,
                std::source_location where = std::source_location::current()) {
    if (code == ncclSuccess) return;
    fail(ExitCode::retry,
         "{} failed: {} ({}; the GPUs can no longer talk to each other) try NCCL_DEBUG=INFO [{}:{}]", call,
         ncclGetErrorString(code), ncclGetLastError(nullptr), where.file_name(), where.line());
}

std::string format_version(int version) {
    return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);  // since 2.9
}

}  // namespace

NcclVersions nccl_versions() {
    int loaded = 0;
    nccl_check(ncclGetVersion(&loaded), "ncclGetVersion");
    return {format_version(NCCL_VERSION_CODE), format_version(loaded)};
}

struct NcclExchange::Handle {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;

    ~Handle() {
        // Destroying waits for the peers: while unwinding it is left to the end of the process.
        if (comm == nullptr || std::uncaught_exceptions() > 0) return;
        ncclCommFinalize(comm);
        ncclCommDestroy(comm);
    }
};

NcclExchange::NcclExchange(Communicator const& communicator, ExchangeConfig const& config,
                           Reduction reduction)
    : rank_(communicator.rank()),
      num_ranks_(communicator.size()),
      reduction_(reduction),
      num_floats_(config.num_floats),
      chunk_floats_((config.num_floats / 16 + static_cast<std::size_t>(num_ranks_) - 1) /
                    static_cast<std::size_t>(num_ranks_) * 16),
      nccl_(std::make_unique<Handle>()) {
    std::vector<BufferPlan> const plans = collective_plans(communicator, config);
    std::vector<ReplicaRange> sources;
    for (BufferPlan const& plan : plans) {
        num_nodes_.push_back(static_cast<int>(plan.partial_sums.size()));
        for (PartialSum const& sum : plan.partial_sums) sources.push_back({sum.begin, sum.end});
    }
    plan_ = plans[static_cast<std::size_t>(rank_)];
    order_.postfix = postfix_order(config.num_replicas, sources);
    std::size_t const padded = chunk_floats_ * static_cast<std::size_t>(num_ranks_);
    for (int i = 0; i < plan_.num_buffers; ++i) buffers_.emplace_back(padded);
    received_ = cuda::DeviceFloats((sources.size() - plan_.partial_sums.size()) * chunk_floats_);
    sum_ = cuda::DeviceFloats(padded);

    ncclUniqueId id{};
    communicator.agree([&] {
        if (rank_ == 0) nccl_check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    communicator.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    communicator.barrier();  // some MPI builds finish a broadcast only in their next call: NVIDIA/cuDecomp#24
    ncclConfig_t nccl_config = NCCL_CONFIG_INITIALIZER;
    nccl_config.blocking = 1;
    communicator.agree([&] {
        nccl_check(ncclCommInitRankConfig(&nccl_->comm, num_ranks_, id, rank_, &nccl_config),
                   "ncclCommInitRankConfig");
    });
    nccl_->stream = static_cast<cudaStream_t>(stream_.get());
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
    nccl_check(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < num_ranks_; ++peer) {
        for (PartialSum const& partial : plan_.partial_sums) {
            float* const data = buffers_[static_cast<std::size_t>(partial.buffer)].data();
            if (peer == rank_) {
                sources.push_back(chunk(data, rank_));
            } else {
                nccl_check(
                    ncclSend(chunk(data, peer), chunk_floats_, ncclFloat, peer, nccl_->comm, nccl_->stream),
                    "ncclSend");
            }
        }
        for (int node = 0; peer != rank_ && node < num_nodes_[static_cast<std::size_t>(peer)]; ++node) {
            nccl_check(ncclRecv(place, chunk_floats_, ncclFloat, peer, nccl_->comm, nccl_->stream),
                       "ncclRecv");
            sources.push_back(place);
            place += chunk_floats_;
        }
    }
    nccl_check(ncclGroupEnd(), "ncclGroupEnd");
    float* const mine = chunk(sum_.data(), rank_);
    cuda::sum_in_order(mine, sources, order_, chunk_floats_, stream_);
    nccl_check(ncclAllGather(mine, sum_.data(), chunk_floats_, ncclFloat, nccl_->comm, nccl_->stream),
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
    nccl_check(
        ncclAllReduce(sum_.data(), sum_.data(), num_floats_, ncclFloat, ncclSum, nccl_->comm, nccl_->stream),
        "ncclAllReduce");
}

void NcclExchange::reduce(Consume const& consume) {
    if (reduction_ == Reduction::exact) {
        gather_exact_sum();
    } else {
        gather_fast_sum();
    }
    consume(0, {sum_.data(), num_floats_});
    stream_.synchronize();
}

}  // namespace holdfast::parallel
