// SPDX-License-Identifier: Apache-2.0
#include "parallel/host_shared_memory.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

#include <mpi.h>

#include "core/error.hpp"
#include "parallel/communicator_state.hpp"
#include "parallel/mpi_check.hpp"

namespace holdfast::parallel {
namespace {

constexpr std::size_t page_bytes = 4096;

struct FileDescriptor {
    int fd = -1;
    ~FileDescriptor() {
        if (fd >= 0) ::close(fd);
    }
};

/// Null if the memory cannot be mapped; errno says why.
std::byte* map(int fd, std::size_t size_bytes) {
    void* const base = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return nullptr;
    madvise(base, size_bytes, MADV_HUGEPAGE);  // a wish: not every kernel grants it for shared memory
    return static_cast<std::byte*>(base);
}

/// Whether `mine` holds on every rank of the launch.
bool all_ranks(Communicator::State const& s, bool mine) {
    int const ok = mine ? 1 : 0;
    int all = ok;
    if (s.size > 1) mpi_check(MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, s.all), "MPI_Allreduce");
    return all != 0;
}

/// The mapping, or null on every rank if one rank could not get it.
std::byte* map_memfd(Communicator::State const& s, std::size_t size_bytes) {
    FileDescriptor file;
    struct {
        std::int64_t pid = 0;
        std::int64_t fd = -1;
        std::uint64_t device = 0;
        std::uint64_t inode = 0;
    } name;
    struct stat status {};
    if (s.local_rank == 0) {
        file.fd = memfd_create("holdfast", MFD_CLOEXEC);
        bool const made = file.fd >= 0 && ftruncate(file.fd, static_cast<off_t>(size_bytes)) == 0 &&
                          fstat(file.fd, &status) == 0;
        if (made) name = {getpid(), file.fd, status.st_dev, status.st_ino};
    }
    if (s.local_size > 1) mpi_check(MPI_Bcast(&name, sizeof name, MPI_BYTE, 0, s.within_host), "MPI_Bcast");
    std::byte* base = nullptr;
    if (name.fd >= 0) {
        if (s.local_rank != 0)
            file.fd = ::open(fmt::format("/proc/{}/fd/{}", name.pid, name.fd).c_str(), O_RDWR | O_CLOEXEC);
        // In another process namespace the same path may be somebody else's file.
        bool const same = file.fd >= 0 && fstat(file.fd, &status) == 0 && status.st_dev == name.device &&
                          status.st_ino == name.inode;
        if (same) base = map(file.fd, size_bytes);
    }
    // Also keeps the first rank's descriptor open until everyone has mapped it.
    if (all_ranks(s, base != nullptr)) return base;
    if (base != nullptr) munmap(base, size_bytes);
    return nullptr;
}

/// A window that does not fit fails on one rank and hangs the others, so every rank looks first.
void agree_that_window_fits(Communicator const& communicator, std::size_t size_bytes) {
    communicator.agree([&] {
        char const* const setting = std::getenv("OMPI_MCA_osc_sm_backing_directory");
        std::string const folder = setting != nullptr ? setting : "/dev/shm";
        struct statvfs space {};
        require(statvfs(folder.c_str(), &space) == 0, ExitCode::do_not_requeue,
                "cannot look at {}: {} (the ranks of a host share {} MB of memory through it); set "
                "OMPI_MCA_osc_sm_backing_directory to a folder with enough space",
                folder, std::strerror(errno), size_bytes >> 20);
        std::uint64_t const available = std::uint64_t{space.f_bavail} * space.f_frsize;
        require(available >= size_bytes, ExitCode::do_not_requeue,
                "{} has {} MB free, {} MB are needed (the ranks of a host share memory through it, since "
                "they cannot open "
                "each other's /proc/PID/fd); start the container with a larger --shm-size, or set "
                "OMPI_MCA_osc_sm_backing_directory to a folder with enough space",
                folder, available >> 20, size_bytes >> 20);
    });
}

}  // namespace

struct HostSharedMemory::Owner {
    void* mapping = nullptr;
    std::size_t mapping_bytes = 0;
    MPI_Win window = MPI_WIN_NULL;

    ~Owner() {
        if (mapping != nullptr) munmap(mapping, mapping_bytes);
        // Freeing a window waits for the peers, so never while unwinding.
        if (window == MPI_WIN_NULL || std::uncaught_exceptions() > 0) return;
        int finalized = 0;
        MPI_Finalized(&finalized);
        if (!finalized) MPI_Win_free(&window);
    }
};

HostSharedMemory::HostSharedMemory(std::unique_ptr<Owner> owner, std::span<std::byte> bytes)
    : owner_(std::move(owner)), bytes_(bytes) {}
HostSharedMemory::~HostSharedMemory() = default;
HostSharedMemory::HostSharedMemory(HostSharedMemory&&) noexcept = default;
HostSharedMemory& HostSharedMemory::operator=(HostSharedMemory&&) noexcept = default;

std::span<float> HostSharedMemory::floats() const {
    return {reinterpret_cast<float*>(bytes_.data()), bytes_.size() / sizeof(float)};
}

bool HostSharedMemory::collective_needs_no_folder(Communicator const& communicator) {
    std::byte* const base = map_memfd(communicator.state(), page_bytes);
    if (base != nullptr) munmap(base, page_bytes);
    return base != nullptr;
}

HostSharedMemory HostSharedMemory::collective_allocate(Communicator const& communicator,
                                                       std::size_t size_bytes, Backing backing) {
    Communicator::State const& s = communicator.state();
    auto owner = std::make_unique<Owner>();
    if (backing == Backing::memfd_or_window) {
        if (std::byte* const base = map_memfd(s, size_bytes)) {
            owner->mapping = base;
            owner->mapping_bytes = size_bytes;
            return {std::move(owner), {base, size_bytes}};
        }
    }
    require(s.all != MPI_COMM_NULL, ExitCode::retry, "cannot map {} MB of memory: {}", size_bytes >> 20,
            std::strerror(errno));

    std::size_t const window_bytes = size_bytes + page_bytes;  // MPI gives any alignment
    agree_that_window_fits(communicator, window_bytes);
    void* base = nullptr;
    communicator.agree([&] {
        MPI_Aint const mine = s.local_rank == 0 ? static_cast<MPI_Aint>(window_bytes) : 0;
        mpi_check(MPI_Win_allocate_shared(mine, 1, MPI_INFO_NULL, s.within_host, &base, &owner->window),
                  "MPI_Win_allocate_shared");
        MPI_Win_set_errhandler(owner->window, MPI_ERRORS_RETURN);
        MPI_Aint first_bytes = 0;
        int unit = 0;
        mpi_check(MPI_Win_shared_query(owner->window, 0, &first_bytes, &unit, &base), "MPI_Win_shared_query");
    });
    // Processes map the window at addresses of their own, but at whole pages: the remainder is the same
    // everywhere.
    std::size_t const remainder = reinterpret_cast<std::uintptr_t>(base) % page_bytes;
    std::byte* const aligned = static_cast<std::byte*>(base) + (page_bytes - remainder) % page_bytes;
    if (s.local_rank == 0) std::memset(aligned, 0, size_bytes);
    communicator.barrier_host();
    return {std::move(owner), {aligned, size_bytes}};
}

}  // namespace holdfast::parallel
