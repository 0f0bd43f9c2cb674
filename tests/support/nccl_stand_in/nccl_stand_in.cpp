// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 for tests: what NcclExchange calls, between processes of one machine and in host memory, so that the same
// code runs without a GPU. Bytes travel through small rings in shared memory, so every message is cut and interleaved. A
// call is done when it returns; errors come as NCCL's do, through ncclCommGetAsyncError. Never installed.
//
// Trouble on demand, by environment (calls are groups and collectives of a rank, counted from 0):
//   HOLDFAST_NCCL_STAND_IN_VERSION=CODE          the version it says it is
//   HOLDFAST_NCCL_STAND_IN_DELAY=RANK:MS         that rank is late at every call
//   HOLDFAST_NCCL_STAND_IN_HANG=RANK:CALL        that rank never leaves the call
//   HOLDFAST_NCCL_STAND_IN_ERROR=RANK:CALL       that rank fails in the call, and the others learn of it
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nccl.h>

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

/// A send or receive of a group: eight bytes of size, then the data.
struct Transfer {
    ncclComm_t comm;
    bool is_send;
    int peer;
    unsigned char* data;
    std::uint64_t size;
    std::uint64_t announced = 0;  ///< the size as it came from the sender
    std::uint64_t done = 0;       ///< of 8 + size bytes
};

struct Injection {
    int rank = -1;
    long value = 0;
    explicit Injection(char const* variable) {
        if (char const* const text = std::getenv(variable); text != nullptr)
            if (std::sscanf(text, "%d:%ld", &rank, &value) != 2) rank = -1;
    }
};

thread_local int group_depth = 0;
thread_local std::vector<Transfer> group;

}  // namespace

struct ncclComm {
    int rank = 0;
    int num_ranks = 0;
    Shared* shared = nullptr;
    std::size_t mapped_bytes = 0;
    long num_calls = 0;
    ncclResult_t error = ncclSuccess;
    Injection delay{"HOLDFAST_NCCL_STAND_IN_DELAY"};
    Injection hang{"HOLDFAST_NCCL_STAND_IN_HANG"};
    Injection failure{"HOLDFAST_NCCL_STAND_IN_ERROR"};

    Ring& ring(int sender, int receiver) {
        return reinterpret_cast<Ring*>(shared + 1)[sender * num_ranks + receiver];
    }

    /// False if the call is not to be carried out.
    bool begin_call() {
        long const call = num_calls++;
        if (delay.rank == rank) std::this_thread::sleep_for(std::chrono::milliseconds(delay.value));
        while (hang.rank == rank && hang.value == call) std::this_thread::sleep_for(std::chrono::hours(1));
        if (failure.rank == rank && failure.value == call) fail(ncclSystemError);
        return error == ncclSuccess;
    }

    void fail(ncclResult_t code) {
        error = code;
        shared->has_failed = true;
    }
};

namespace {

unsigned char* part_at(Transfer& transfer, std::uint64_t& left) {
    if (transfer.done < 8) {
        left = 8 - transfer.done;
        return reinterpret_cast<unsigned char*>(transfer.is_send ? &transfer.size : &transfer.announced) +
               transfer.done;
    }
    left = transfer.size + 8 - transfer.done;
    return transfer.data + (transfer.done - 8);
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
    if (transfer.done == 8 && !transfer.is_send && transfer.announced != transfer.size)
        comm.fail(ncclInvalidUsage);
    return true;
}

/// All transfers side by side, those in one direction with one peer in turn.
void run(std::vector<Transfer> transfers) {
    std::vector<ncclComm_t> comms;
    for (Transfer const& transfer : transfers)
        if (std::find(comms.begin(), comms.end(), transfer.comm) == comms.end())
            comms.push_back(transfer.comm);
    for (ncclComm_t const comm : comms)
        if (!comm->begin_call()) return;
    while (!transfers.empty()) {
        bool has_moved = false;
        std::vector<std::pair<bool, int>> busy;
        for (Transfer& transfer : transfers) {
            std::pair const line{transfer.is_send, transfer.peer};
            if (std::find(busy.begin(), busy.end(), line) != busy.end()) continue;
            busy.push_back(line);
            has_moved = progress(transfer) || has_moved;
            if (transfer.comm->error != ncclSuccess) return;
        }
        std::erase_if(transfers, [](Transfer const& transfer) { return transfer.done == transfer.size + 8; });
        if (has_moved) continue;
        for (Transfer const& transfer : transfers)
            if (transfer.comm->shared->has_failed) {
                transfer.comm->error = ncclRemoteError;
                return;
            }
        std::this_thread::yield();
    }
}

bool is_usable(ncclComm_t comm, int peer, ncclDataType_t type, cudaStream_t stream) {
    return comm != nullptr && peer >= 0 && peer < comm->num_ranks && type == ncclFloat && stream == nullptr;
}

ncclResult_t add_transfer(Transfer const& transfer) {
    group.push_back(transfer);
    if (group_depth == 0) run(std::exchange(group, {}));
    return ncclSuccess;
}

unsigned char* bytes_of(void const* data) { return static_cast<unsigned char*>(const_cast<void*>(data)); }

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
    char const* const text = std::getenv("HOLDFAST_NCCL_STAND_IN_VERSION");
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

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    munmap(comm->shared, comm->mapped_bytes);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
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
    if (--group_depth == 0) run(std::exchange(group, {}));
    return ncclSuccess;
}

ncclResult_t ncclSend(void const* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (!is_usable(comm, peer, type, stream)) return ncclInvalidArgument;
    return add_transfer({comm, true, peer, bytes_of(data), count * sizeof(float)});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (!is_usable(comm, peer, type, stream)) return ncclInvalidArgument;
    return add_transfer({comm, false, peer, bytes_of(data), count * sizeof(float)});
}

ncclResult_t ncclAllGather(void const* mine, void* all, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    if (!is_usable(comm, 0, type, stream) || group_depth > 0) return ncclInvalidArgument;
    std::size_t const size = count * sizeof(float);
    std::vector<Transfer> transfers;
    for (int rank = 0; rank < comm->num_ranks; ++rank) {
        unsigned char* const place = bytes_of(all) + static_cast<std::size_t>(rank) * size;
        if (rank == comm->rank) {
            if (place != mine) std::memmove(place, mine, size);
            continue;
        }
        transfers.push_back({comm, true, rank, bytes_of(mine), size});
        transfers.push_back({comm, false, rank, place, size});
    }
    run(std::move(transfers));
    return ncclSuccess;
}

/// Added in the order of ranks, so the bits depend on how many there are, as NCCL's do.
ncclResult_t ncclAllReduce(void const* mine, void* sum, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    if (op != ncclSum) return ncclInvalidArgument;
    std::vector<float> all(count * (comm != nullptr ? static_cast<std::size_t>(comm->num_ranks) : 0));
    if (ncclResult_t const result = ncclAllGather(mine, all.data(), count, type, comm, stream);
        result != ncclSuccess)
        return result;
    for (std::size_t i = 0; i < count; ++i) {
        float value = all[i];
        for (std::size_t rank = 1; rank < static_cast<std::size_t>(comm->num_ranks); ++rank)
            value += all[rank * count + i];
        static_cast<float*>(sum)[i] = value;
    }
    return ncclSuccess;
}
