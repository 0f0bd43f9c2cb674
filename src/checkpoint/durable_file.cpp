// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/durable_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "core/error.hpp"

namespace holdfast::checkpoint {
namespace {

namespace fs = std::filesystem;

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor const&) = delete;
    Descriptor& operator=(Descriptor const&) = delete;
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }
    bool is_open() const { return fd_ >= 0; }
    /// Closes and says whether that worked: NFS and quotas report late.
    bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

  private:
    int fd_;
};

bool write_all(int fd, std::span<std::byte const> content) {
    constexpr std::size_t max_piece = std::size_t{1} << 30;  // Linux writes at most 2 GiB - 4 KiB a call
    while (!content.empty()) {
        ssize_t const written = ::write(fd, content.data(), std::min(content.size(), max_piece));
        if (written < 0 && errno == EINTR) continue;
        if (written == 0) errno = ENOSPC;  // what a file system means that says neither yes nor no
        if (written <= 0) return false;
        content = content.subspan(static_cast<std::size_t>(written));
    }
    return true;
}

bool is_folder(fs::path const& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

/// After a failed call that needed `temp_dir`.
[[noreturn]] void fail_write(char const* action, fs::path const& path, fs::path const& temp_dir, int error) {
    if (error == ENOENT && !is_folder(temp_dir)) {
        fail(ExitCode::owned_elsewhere,
             "cannot {} {}: {} is gone (another launch has taken this run over); this launch stops", action,
             path.string(), temp_dir.string());
    }
    fail(ExitCode::retry, "cannot {} {}: {} (errno {}); check space, quota and permissions", action,
         path.string(), std::strerror(error), error);
}

fs::path folder_of(fs::path const& path) {
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void require_appended(bool succeeded, fs::path const& path) {
    int const error = errno;
    require(succeeded, ExitCode::retry,
            "cannot append to {}: {} (errno {}); check space, quota and permissions", path.string(),
            std::strerror(error), error);
}

}  // namespace

std::vector<std::byte> read_file(fs::path const& path, std::size_t max_bytes, CheckEnds const& check_ends) {
    auto const fail_read = [&](int error) {
        bool const no_file =
            error == ENOENT || error == ENOTDIR || error == EISDIR || error == ELOOP || error == ENAMETOOLONG;
        fail(no_file ? ExitCode::do_not_requeue : ExitCode::retry, "cannot read {}: {} (errno {})",
             path.string(), std::strerror(error), error);
    };
    Descriptor const file(
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not block us
    if (!file.is_open()) fail_read(errno);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail_read(errno);
    require(S_ISREG(status.st_mode), ExitCode::do_not_requeue, "cannot read {}: not a regular file",
            path.string());
    auto const size = static_cast<std::size_t>(status.st_size);
    require(size <= max_bytes, ExitCode::do_not_requeue, "cannot read {}: {} bytes, {} at most are accepted",
            path.string(), size, max_bytes);
    /// Fewer bytes if the file is cut off meanwhile; the digest will say so.
    auto const read_at = [&](std::size_t offset, std::size_t count) {
        std::vector<std::byte> bytes(count);
        std::size_t done = 0;
        while (done < count) {
            ssize_t const got =
                ::pread(file.get(), bytes.data() + done, count - done, static_cast<off_t>(offset + done));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) fail_read(errno);
            if (got == 0) break;
            done += static_cast<std::size_t>(got);
        }
        bytes.resize(done);
        return bytes;
    };
    std::size_t const at_ends = std::min(size, ends_bytes);
    if (check_ends) check_ends(read_at(0, at_ends), read_at(size - at_ends, at_ends));
    return read_at(0, size);
}

void sync_folder(fs::path const& folder) {
    Descriptor const handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Some file systems cannot sync a folder and say EINVAL; there is nothing better to do on them.
    bool const synced = handle.is_open() && (::fsync(handle.get()) == 0 || errno == EINVAL);
    int const error = errno;
    require(synced, ExitCode::retry,
            "cannot sync the folder {}: {} (errno {}); its newest file may not survive a power cut",
            folder.string(), std::strerror(error), error);
}

void sync_path_of(fs::path const& folder) {
    fs::path above = fs::absolute(folder).lexically_normal();
    while (above.has_relative_path()) {
        above = above.parent_path();
        // What this process may not open, it has not created.
        if (::access(above.c_str(), R_OK) == 0) sync_folder(above);
    }
}

void replace_file_durably(fs::path const& path, std::span<std::byte const> content, fs::path const& temp_dir,
                          std::function<void()> const& before_rename) {
    fs::path const temp = temp_dir / (path.filename().string() + ".tmp");
    ::unlink(temp.c_str());  // left by an earlier launch without a folder of its own
    Descriptor file(::open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file.is_open()) fail_write("create", temp, temp_dir, errno);
    try {
        if (!write_all(file.get(), content)) fail_write("write", temp, temp_dir, errno);
        // Never repeated on the same file: after a failed fsync the kernel may call the lost pages clean.
        if (::fsync(file.get()) != 0) fail_write("sync", temp, temp_dir, errno);
        if (!file.close()) fail_write("close", temp, temp_dir, errno);
        if (before_rename) before_rename();
        if (::rename(temp.c_str(), path.c_str()) != 0)
            fail_write("rename to its final name", path, temp_dir, errno);
    } catch (...) {
        ::unlink(temp.c_str());
        throw;
    }
    sync_folder(folder_of(path));
}

void write_file_durably(fs::path const& path, std::string_view text, fs::path const& temp_dir) {
    replace_file_durably(path, std::as_bytes(std::span(text.data(), text.size())), temp_dir);
}

void append_line(fs::path const& path, std::string_view line) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    auto const check = [&](bool succeeded) { require_appended(succeeded, path); };
    check(file.is_open());
    off_t const size = ::lseek(file.get(), 0, SEEK_END);
    check(size >= 0);
    char last = '\n';
    if (size > 0) check(::pread(file.get(), &last, 1, size - 1) == 1);
    std::string row = last == '\n' ? "" : "\n";
    row.append(line).push_back('\n');
    check(write_all(file.get(), std::as_bytes(std::span(row.data(), row.size()))));
    check(file.close());
}

void sync_appended(fs::path const& path, bool is_new) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    require_appended(file.is_open() && ::fsync(file.get()) == 0 && file.close(), path);
    if (is_new) sync_folder(folder_of(path));
}

}  // namespace holdfast::checkpoint
