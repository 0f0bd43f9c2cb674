// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor/storage_facts.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/statvfs.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "checkpoint/checkpoint_store.hpp"
#include "core/error.hpp"
#include "core/seconds_since.hpp"

namespace holdfast::commands::doctor {
namespace {

namespace fs = std::filesystem;

void require_done(bool done) { require(done, ExitCode::do_not_requeue, "{}", std::strerror(errno)); }

/// A new file, gone with the object.
class ScratchFile {
  public:
    ScratchFile(fs::path const& path, bool keep) : path_(path), keep_(keep) {
        descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        require_done(descriptor_ >= 0);
    }
    ~ScratchFile() {
        close(descriptor_);
        if (!keep_) unlink(path_.c_str());
    }
    ScratchFile(ScratchFile const&) = delete;
    ScratchFile& operator=(ScratchFile const&) = delete;

    void write_and_sync(char const* data, std::size_t size) {
        for (std::size_t done = 0; done < size;) {
            ssize_t const written = write(descriptor_, data + done, size - done);
            if (written < 0 && errno == EINTR) continue;
            require_done(written >= 0);
            done += static_cast<std::size_t>(written);
        }
        require_done(fsync(descriptor_) == 0);
    }

  private:
    fs::path path_;
    bool keep_;
    int descriptor_ = -1;
};

}  // namespace

std::string existing_folder(std::string const& run) {
    fs::path folder = fs::path(run).lexically_normal();
    std::error_code error;
    while (!folder.empty() && !fs::exists(fs::symlink_status(folder, error))) folder = folder.parent_path();
    if (folder.empty()) folder = ".";
    require(fs::is_directory(folder, error), ExitCode::do_not_requeue, "{} is no folder", folder.string());
    return folder.string();
}

std::string absolute_path(std::string const& folder) {
    std::error_code error;
    fs::path const path = folder == "." ? fs::current_path(error) : fs::absolute(folder, error);
    return error ? folder : path.lexically_normal().string();
}

void write_nonce(std::string const& folder, std::string const& name, std::string const& text) {
    fs::path const path = fs::path(folder) / name;
    ScratchFile file(path, /*keep=*/true);
    try {
        file.write_and_sync(text.data(), text.size());
    } catch (Error const&) {
        unlink(path.c_str());
        throw;
    }
}

void remove_nonce(std::string const& folder, std::string const& name) {
    std::error_code ignored;
    fs::remove(fs::path(folder) / name, ignored);
}

std::string look_for_nonce(std::string const& folder, std::string const& name, std::string const& text) {
    using namespace std::chrono_literals;
    std::string failure;
    for (auto const wait :
         {0ms, 100ms, 300ms, 600ms}) {  // a file system over the network may show it a little later
        std::this_thread::sleep_for(wait);
        errno = 0;
        std::ifstream file(fs::path(folder) / name, std::ios::binary);
        if (!file) {
            failure = std::strerror(errno);
            continue;
        }
        std::string const content{std::istreambuf_iterator<char>(file), {}};
        if (content == text) return "";
        failure = "the file is there with another content";
    }
    return failure;
}

SyncTimes measure_sync(std::string const& folder) {
    constexpr std::size_t block_bytes = 4096;
    constexpr std::size_t large_bytes = std::size_t{4} << 20;
    ScratchFile file(fs::path(folder) / fmt::format(".holdfast-doctor-{}-sync", getpid()), /*keep=*/false);
    std::vector<char> const data(large_bytes, 'h');
    std::array<double, 5> times_s{};
    for (double& time_s : times_s) {
        auto const start = std::chrono::steady_clock::now();
        file.write_and_sync(data.data(), block_bytes);
        time_s = seconds_since(start);
    }
    std::ranges::sort(times_s);
    auto const start = std::chrono::steady_clock::now();
    file.write_and_sync(data.data(), large_bytes);
    return {times_s[times_s.size() / 2], static_cast<double>(large_bytes) / 1e6 / seconds_since(start)};
}

Space space_of(std::string const& folder) {
    struct statvfs space {};
    require_done(statvfs(folder.c_str(), &space) == 0);
    return {std::uint64_t{space.f_bavail} * space.f_frsize, space.f_files, space.f_favail};
}

Checkpoints checkpoints_of(std::string const& run) {
    auto const entries = checkpoint::CheckpointStore(run).list();
    if (entries.empty()) return {};
    return {static_cast<std::int64_t>(entries.size()), fs::file_size(entries.front().path)};
}

}  // namespace holdfast::commands::doctor
