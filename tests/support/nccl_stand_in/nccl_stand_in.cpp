// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 for tests: what NcclExchange calls, between processes of one machine and in host memory, so that the same
// code runs without a GPU. Bytes travel through small rings in shared memory, so every message is cut and interleaved. The
// work of a call is done in its stream (cuda/deferred_host_streams.hpp) or at once; errors come as NCCL's do, through
// ncclCommGetAsyncError. Stricter than NCCL: it refuses a message whose two ends do not agree about its size or about whether their
// memory is registered. Never installed.
//
// Compiled with NCCL_STAND_IN_IS_OLD it is one from before NCCL 2.19: without memory and windows.
//
// Trouble on demand, by environment (calls are groups and collectives of a rank, counted from 0):
//   NCCL_STAND_IN_VERSION=CODE          the version it says it is
//   NCCL_STAND_IN_NO_MEMORY=1           ncclMemAlloc fails in this process
//   NCCL_STAND_IN_DELAY=RANK:MS         that rank is late at every call
//   NCCL_STAND_IN_HANG=RANK:CALL        that rank never leaves the call
//   NCCL_STAND_IN_ERROR=RANK:CALL       that rank fails in the call, and the others learn of it
//   NCCL_STAND_IN_ERROR_WHEN=RANK:FILE  that rank fails once FILE is there, whatever it does; it alone knows
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nccl.h>

#include "cuda/deferred_host_streams.hpp"

namespace {

/// Bytes from one rank to another: one writes, one reads.
struct Ring {
    static constexpr std::size_t capacity = 4096;
    alignas(64) std::atomic<std::uint64_t> num_written;
    alignas(64) std::atomic<std::uint64_t> num_read;
    alignas(64) unsigned char bytes[capacity];
};

/// In shared memory, before the rings of all pairs of ranks.
struct Shared {
    alignas(64) std::atomic<int> num_attached;
    std::atomic<bool> has_failed;
};

/// What comes before the data of a message.
struct Header {
    std::uint64_t size;
    std::uint64_t is_registered;  ///< the memory of this end
    friend bool operator==(Header const&, Header const&) = default;
};

/// A send or receive of a group.
struct Transfer {
    ncclComm_t comm;
    bool is_send;
    int peer;
    unsigned char* data;
    Header header;         ///< as this end sees it
    Header announced{};    ///< as it came from the sender
    std::uint64_t done{};  ///< of header and data, in bytes

    std::uint64_t size() const { return sizeof header + header.size; }
};

/// RANK:VALUE
struct Injection {
    int rank = -1;
    std::string value;
    explicit Injection(char const* variable) {
        char const* const text = std::getenv(variable);
        if (text == nullptr) return;
        rank = std::atoi(text);
        value = std::strchr(text, ':') + 1;
    }
    bool is_number(int of_rank, long number) const { return rank == of_rank && std::stol(value) == number; }
};

thread_local int group_depth = 0;
thread_local std::vector<Transfer> group;
thread_local cudaStream_t group_stream = nullptr;

}  // namespace

struct ncclComm {
    int rank = 0;
    int num_ranks = 0;
    Shared* shared = nullptr;
    std::size_t mapped_bytes = 0;
    long num_calls = 0;
    std::atomic<ncclResult_t> error{ncclSuccess};
    std::map<unsigned char*, std::size_t> windows;  ///< registered memory: begin and size
    Injection delay{"NCCL_STAND_IN_DELAY"};
    Injection hang{"NCCL_STAND_IN_HANG"};
    Injection failure{"NCCL_STAND_IN_ERROR"};
    Injection failure_when{"NCCL_STAND_IN_ERROR_WHEN"};

    Ring& ring(int sender, int receiver) {
        return reinterpret_cast<Ring*>(shared + 1)[sender * num_ranks + receiver];
    }

    /// The part of a call that the caller waits for.
    long begin_call() {
        long const call = num_calls++;
        while (hang.is_number(rank, call)) std::this_thread::sleep_for(std::chrono::hours(1));
        return call;
    }

    /// The part that its stream does. False if the call is not to be carried out.
    bool begin_work(long call) {
        if (delay.rank == rank)
            std::this_thread::sleep_for(std::chrono::milliseconds(std::stol(delay.value)));
        if (failure.is_number(rank, call)) fail(ncclSystemError);
        return error == ncclSuccess;
    }

    void fail(ncclResult_t code) {
        error = code;
        shared->has_failed = true;
    }

    bool is_registered(unsigned char* data, std::size_t size) const {
        auto const after = windows.upper_bound(data);
        if (after == windows.begin()) return false;
        auto const [begin, window_size] = *std::prev(after);
        return data + size <= begin + window_size;
    }

    Transfer transfer(bool is_send, int peer, unsigned char* data, std::size_t size) {
        return {this, is_send, peer, data, {size, is_registered(data, size) ? 1U : 0U}};
    }
};

namespace {

unsigned char* part_at(Transfer& transfer, std::uint64_t& left) {
    if (transfer.done < sizeof(Header)) {
        left = sizeof(Header) - transfer.done;
        return reinterpret_cast<unsigned char*>(transfer.is_send ? &transfer.header : &transfer.announced) +
               transfer.done;
    }
    left = transfer.size() - transfer.done;
    return transfer.data + (transfer.done - sizeof(Header));
}

/// Moves what can be moved now; returns whether anything was.
bool progress(Transfer& transfer) {
    ncclComm& comm = *transfer.comm;
    Ring& ring = transfer.is_send ? comm.ring(comm.rank, transfer.peer) : comm.ring(transfer.peer, comm.rank);
    std::uint64_t const in_ring = ring.num_written - ring.num_read;
    std::uint64_t left = 0;
    unsigned char* const data = part_at(transfer, left);
    std::uint64_t const position = (transfer.is_send ? ring.num_written : ring.num_read) % Ring::capacity;
    std::uint64_t const count =
        std::min({left, transfer.is_send ? Ring::capacity - in_ring : in_ring, Ring::capacity - position});
    if (count == 0) return false;
    if (transfer.is_send) {
        std::memcpy(ring.bytes + position, data, count);
        ring.num_written += count;
    } else {
        std::memcpy(data, ring.bytes + position, count);
        ring.num_read += count;
    }
    transfer.done += count;
    if (transfer.done == sizeof(Header) && !transfer.is_send && transfer.announced != transfer.header)
        comm.fail(ncclInvalidUsage);
    return true;
}

/// All transfers side by side, those in one direction with one peer in turn.
void move(ncclComm& comm, std::vector<Transfer> transfers) {
    while (!transfers.empty()) {
        bool has_moved = false;
        std::vector<std::pair<bool, int>> busy;
        for (Transfer& transfer : transfers) {
            std::pair const line{transfer.is_send, transfer.peer};
            if (std::find(busy.begin(), busy.end(), line) != busy.end()) continue;
            busy.push_back(line);
            has_moved = progress(transfer) || has_moved;
            if (comm.error != ncclSuccess) return;
        }
        std::erase_if(transfers, [](Transfer const& transfer) { return transfer.done == transfer.size(); });
        if (has_moved) continue;
        if (comm.shared->has_failed) {
            comm.error = ncclRemoteError;
            return;
        }
        std::this_thread::yield();
    }
}

/// A group or a collective; `finish` comes after its transfers.
ncclResult_t run(ncclComm& comm, cudaStream_t stream, std::vector<Transfer> transfers,
                 std::function<void()> finish = {}) {
    long const call = comm.begin_call();
    auto work = [&comm, call, transfers = std::move(transfers), finish = std::move(finish)] {
        if (!comm.begin_work(call)) return;
        move(comm, transfers);
        if (finish && comm.error == ncclSuccess) finish();
    };
    if (stream == nullptr)
        work();
    else
        reinterpret_cast<holdfast::cuda::HostQueue*>(stream)->add(std::move(work));
    return ncclSuccess;
}

bool is_usable(ncclComm_t comm, int peer, ncclDataType_t type) {
    return comm != nullptr && peer >= 0 && peer < comm->num_ranks && type == ncclFloat;
}

ncclResult_t end_group() {
    if (group.empty()) return ncclSuccess;
    ncclComm& comm = *group.front().comm;
    return run(comm, group_stream, std::exchange(group, {}));
}

ncclResult_t add_transfer(Transfer const& transfer, cudaStream_t stream) {
    if (!group.empty() && (stream != group_stream || transfer.comm != group.front().comm))
        return ncclInvalidUsage;
    group_stream = stream;
    group.push_back(transfer);
    return group_depth == 0 ? end_group() : ncclSuccess;
}

unsigned char* bytes_of(void const* data) { return static_cast<unsigned char*>(const_cast<void*>(data)); }

/// Rank p's bytes come to all + p * size.
std::vector<Transfer> gathering(ncclComm& comm, unsigned char* mine, unsigned char* all, std::size_t size) {
    std::vector<Transfer> transfers;
    for (int rank = 0; rank < comm.num_ranks; ++rank) {
        if (rank == comm.rank) continue;
        transfers.push_back(comm.transfer(true, rank, mine, size));
        transfers.push_back(comm.transfer(false, rank, all + static_cast<std::size_t>(rank) * size, size));
    }
    return transfers;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
    char const* const text = std::getenv("NCCL_STAND_IN_VERSION");
    *version = text != nullptr ? std::atoi(text) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::string path = (std::filesystem::temp_directory_path() / "holdfast-nccl-stand-in-XXXXXX").string();
    int const file = mkstemp(path.data());
    if (file < 0 || path.size() >= sizeof id->internal) return ncclSystemError;
    close(file);
    std::memset(id, 0, sizeof *id);
    std::memcpy(id->internal, path.data(), path.size());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    if (num_ranks < 1 || rank < 0 || rank >= num_ranks || config == nullptr || config->blocking != 1)
        return ncclInvalidArgument;
    std::size_t const num_rings = static_cast<std::size_t>(num_ranks) * static_cast<std::size_t>(num_ranks);
    std::size_t const size = sizeof(Shared) + num_rings * sizeof(Ring);
    int const file = open(id.internal, O_RDWR | O_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) return ncclSystemError;
    void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return ncclSystemError;
    auto* const made = new ncclComm;
    made->rank = rank;
    made->num_ranks = num_ranks;
    made->shared = static_cast<Shared*>(memory);  // zero bytes are its first state
    made->mapped_bytes = size;
    if (++made->shared->num_attached == num_ranks) unlink(id.internal);
    while (made->shared->num_attached < num_ranks) std::this_thread::yield();
    *comm = made;
    return ncclSuccess;
}

#ifndef NCCL_STAND_IN_IS_OLD
/// Not zero, as a GPU's.
ncclResult_t ncclMemAlloc(void** memory, size_t size) {
    if (std::getenv("NCCL_STAND_IN_NO_MEMORY") != nullptr) return ncclUnhandledCudaError;
    if (posix_memalign(memory, 4096, size) != 0) return ncclSystemError;
    std::memset(*memory, 0xff, size);
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void* memory) {
    std::free(memory);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t size, ncclWindow_t* window,
                                    int flags) {
    if (flags != NCCL_WIN_COLL_SYMMETRIC || reinterpret_cast<std::uintptr_t>(memory) % 4096 != 0)
        return ncclInvalidArgument;
    comm->windows[static_cast<unsigned char*>(memory)] = size;
    *window = reinterpret_cast<ncclWindow_t>(memory);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    bool const was_there = comm->windows.erase(reinterpret_cast<unsigned char*>(window)) == 1;
    return was_there ? ncclSuccess : ncclInvalidArgument;
}
#endif

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    munmap(comm->shared, comm->mapped_bytes);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    Injection const& when = comm->failure_when;
    if (when.rank == comm->rank && std::filesystem::exists(when.value)) comm->error = ncclSystemError;
    *error = comm->error;
    return ncclSuccess;
}

char const* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclSystemError:
            return "unhandled system error";
        case ncclInvalidArgument:
            return "invalid argument";
        case ncclInvalidUsage:
            return "invalid usage";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        default:
            return "unknown result code";
    }
}

char const* ncclGetLastError(ncclComm_t) { return "stand-in"; }

ncclResult_t ncclGroupStart() {
    ++group_depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (group_depth == 0) return ncclInvalidUsage;
    return --group_depth == 0 ? end_group() : ncclSuccess;
}

ncclResult_t ncclSend(void const* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (!is_usable(comm, peer, type)) return ncclInvalidArgument;
    return add_transfer(comm->transfer(true, peer, bytes_of(data), count * sizeof(float)), stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (!is_usable(comm, peer, type)) return ncclInvalidArgument;
    return add_transfer(comm->transfer(false, peer, bytes_of(data), count * sizeof(float)), stream);
}

ncclResult_t ncclAllGather(void const* mine, void* all, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    if (!is_usable(comm, 0, type) || group_depth > 0) return ncclInvalidArgument;
    std::size_t const size = count * sizeof(float);
    unsigned char* const place = bytes_of(all) + static_cast<std::size_t>(comm->rank) * size;
    return run(*comm, stream, gathering(*comm, bytes_of(mine), bytes_of(all), size), [=] {
        if (place != mine) std::memcpy(place, mine, size);
    });
}

/// Added in the order of ranks, so the bits depend on how many there are, as NCCL's do.
ncclResult_t ncclAllReduce(void const* mine, void* sum, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    if (!is_usable(comm, 0, type) || op != ncclSum || group_depth > 0) return ncclInvalidArgument;
    std::size_t const size = count * sizeof(float);
    auto const all = std::make_shared<std::vector<float>>(count * static_cast<std::size_t>(comm->num_ranks));
    unsigned char* const bytes = bytes_of(all->data());
    std::vector<Transfer> transfers = gathering(*comm, bytes_of(mine), bytes, size);
    for (Transfer& transfer : transfers)  // what is received lies here only for a moment
        transfer.header.is_registered = comm->is_registered(bytes_of(mine), size) ? 1 : 0;
    return run(*comm, stream, std::move(transfers), [=] {
        std::memcpy(bytes + static_cast<std::size_t>(comm->rank) * size, mine, size);
        for (std::size_t i = 0; i < count; ++i) {
            float value = (*all)[i];
            for (std::size_t rank = 1; rank < static_cast<std::size_t>(comm->num_ranks); ++rank)
                value += (*all)[rank * count + i];
            static_cast<float*>(sum)[i] = value;
        }
    });
}
