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
    bool close() { return ::close(release()) == 0; }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

bool write_all(int fd, std::span<std::byte const> content) {
    // The disk begins with each piece while the next is copied: 170 MB and their fsync took 85 ms instead of 120.
    constexpr std::size_t max_piece = std::size_t{8} << 20;
    while (!content.empty()) {
        ssize_t const written = ::write(fd, content.data(), std::min(content.size(), max_piece));
        if (written < 0 && errno == EINTR) continue;
        if (written == 0) errno = ENOSPC;  // what a file system means that says neither yes nor no
        if (written <= 0) return false;
        content = content.subspan(static_cast<std::size_t>(written));
        // A wish, as fsync is what counts; and not for a row of the ledger, which nobody need wait for.
        if (!content.empty()) ::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
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

[[noreturn]] void fail_read(fs::path const& path, int error) {
    bool const no_file =
        error == ENOENT || error == ENOTDIR || error == EISDIR || error == ELOOP || error == ENAMETOOLONG;
    fail(no_file ? ExitCode::do_not_requeue : ExitCode::retry, "cannot read {}: {} (errno {}); check {}",
         path.string(), std::strerror(error), error,
         no_file ? "the path" : "its permissions and the file system");
}

/// Fewer bytes if the file is cut off meanwhile.
std::vector<std::byte> read_from(int fd, fs::path const& path, std::size_t offset, std::size_t count) {
    std::vector<std::byte> bytes(count);
    std::size_t done = 0;
    while (done < count) {
        ssize_t const got = ::pread(fd, bytes.data() + done, count - done, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_read(path, errno);
        if (got == 0) break;
        done += static_cast<std::size_t>(got);
    }
    bytes.resize(done);
    return bytes;
}

/// New bytes of a file, on the disk but without its name yet; gone if they never get it.
class TemporaryFile {
  public:
    TemporaryFile(fs::path final_path, std::span<std::byte const> content, fs::path const& temp_dir)
        : final_path_(std::move(final_path)),
          temp_dir_(temp_dir),
          path_(temp_dir / (final_path_.filename().string() + ".tmp")) {
        ::unlink(path_.c_str());  // left by an earlier launch without a folder of its own
        Descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
        if (!file.is_open()) fail_write("create", path_, temp_dir_, errno);
        try {
            if (!write_all(file.get(), content)) fail_write("write", path_, temp_dir_, errno);
            // Never repeated on the same file: after a failed fsync the kernel may call the lost pages clean.
            if (::fsync(file.get()) != 0) fail_write("sync", path_, temp_dir_, errno);
            if (!file.close()) fail_write("close", path_, temp_dir_, errno);
        } catch (...) {
            ::unlink(path_.c_str());
            throw;
        }
    }
    TemporaryFile(TemporaryFile const&) = delete;
    TemporaryFile& operator=(TemporaryFile const&) = delete;
    ~TemporaryFile() {
        if (!is_renamed_) ::unlink(path_.c_str());
    }

    fs::path const& path() const { return path_; }

    void rename() {
        if (::rename(path_.c_str(), final_path_.c_str()) != 0)
            fail_write("rename to its final name", final_path_, temp_dir_, errno);
        is_renamed_ = true;
        sync_folder(folder_of(final_path_));
    }

  private:
    fs::path final_path_, temp_dir_, path_;
    bool is_renamed_ = false;
};

}  // namespace

std::vector<std::byte> read_file(fs::path const& path, std::size_t max_bytes, CheckEnds const& check_ends) {
    Descriptor const file(
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not block us
    if (!file.is_open()) fail_read(path, errno);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail_read(path, errno);
    require(S_ISREG(status.st_mode), ExitCode::do_not_requeue,
            "cannot read {}: not a regular file; give the path of a file", path.string());
    auto const size = static_cast<std::size_t>(status.st_size);
    require(size <= max_bytes, ExitCode::do_not_requeue, "cannot read {}: {} bytes, {} at most are accepted",
            path.string(), size, max_bytes);
    auto const read_at = [&](std::size_t offset, std::size_t count) {
        return read_from(file.get(), path, offset, count);
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
    TemporaryFile temp(path, content, temp_dir);
    if (before_rename) before_rename();
    temp.rename();
}

void write_file_durably(fs::path const& path, std::string_view text, fs::path const& temp_dir) {
    replace_file_durably(path, std::as_bytes(std::span(text.data(), text.size())), temp_dir);
}

AppendedFile::AppendedFile(fs::path path, std::size_t max_bytes, fs::path const& temp_dir)
    : path_(std::move(path)) {
    std::error_code error;
    bool const is_there = fs::symlink_status(path_, error).type() != fs::file_type::not_found;
    std::vector<std::byte> const content = is_there ? read_file(path_, max_bytes) : std::vector<std::byte>{};
    TemporaryFile temp(path_, content, temp_dir);
    // Before it has its name: afterwards the name may be another launch's.
    Descriptor file(::open(temp.path().c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
    if (!file.is_open()) fail_write("open", temp.path(), temp_dir, errno);
    temp.rename();
    fd_ = file.release();
}

AppendedFile::~AppendedFile() { ::close(fd_); }

std::string AppendedFile::text() const {
    std::vector<std::byte> const bytes = read_from(fd_, path_, 0, size());
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

void AppendedFile::append_line(std::string_view line) {
    std::size_t const end = size();
    bool const is_cut_off = end > 0 && read_from(fd_, path_, end - 1, 1) != std::vector{std::byte{'\n'}};
    std::string row = is_cut_off ? "\n" : "";
    row.append(line).push_back('\n');
    require_appended(write_all(fd_, std::as_bytes(std::span(row.data(), row.size()))), path_);
}

void AppendedFile::sync() { require_appended(::fsync(fd_) == 0, path_); }

std::size_t AppendedFile::size() const {
    struct stat status {};
    require_appended(::fstat(fd_, &status) == 0, path_);
    return static_cast<std::size_t>(status.st_size);
}

}  // namespace holdfast::checkpoint
