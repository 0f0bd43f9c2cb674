// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_store.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint_image.hpp"
#include "checkpoint/durable_file.hpp"
#include "core/log.hpp"

namespace holdfast::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int min_kept = 2;  // the newest can turn out damaged

/// The step in "step-000000001234.h5", nothing for every other name.
std::optional<std::int64_t> step_in_name(std::string_view name) {
    constexpr std::string_view prefix = "step-", suffix = ".h5";
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
    name = name.substr(prefix.size(), name.size() - std::min(name.size(), prefix.size() + suffix.size()));
    std::int64_t step = 0;
    auto const [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    bool const all_digits = error == std::errc{} && end == name.data() + name.size() && name.front() != '-';
    return name.size() >= 12 && all_digits ? std::optional(step) : std::nullopt;
}

std::vector<fs::path> files_in(fs::path const& folder) {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        files.push_back(it->path());
    }
    bool const is_hopeless = error == std::errc::not_a_directory || error == std::errc::filename_too_long ||
                             error == std::errc::too_many_symbolic_link_levels;
    require(!is_hopeless, ExitCode::do_not_requeue,
            "cannot list {}: {} (a run's checkpoints belong there); choose another --run", folder.string(),
            error.message());
    require(!error || error == std::errc::no_such_file_or_directory, ExitCode::retry,
            "cannot list {}: {}; try again when the file system is well", folder.string(), error.message());
    return files;
}

CheckpointFile open_as_step(std::vector<std::byte> bytes, CheckpointStore::Entry const& entry) {
    CheckpointFile file(std::move(bytes), entry.path.string());
    std::int64_t const step = file.integer(step_path);
    require(step == entry.step, ExitCode::do_not_requeue, "{}: holds step {}, another one than its name says",
            file.name(), step);
    return file;
}

struct Attempt {
    std::optional<CheckpointFile> good;
    std::string complaint;  ///< with the digest of a damaged content, so that equal ones mean equal reads
};

/// Damage is an answer here; everything else that is wrong throws.
Attempt attempt(CheckpointStore::Entry const& entry) {
    Attempt result;
    try {
        result.good = open_as_step(read_checkpoint_bytes(entry.path, Trailer::required), entry);
    } catch (OtherFormatError const&) {
        throw;
    } catch (Error const& error) {
        if (error.code() != ExitCode::do_not_requeue) throw;
        result.complaint = error.what();
    }
    return result;
}

/// All zeros where there is no file.
FileVersion version_of(fs::path const& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return {};
    return {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
            status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

struct DamagedFile {
    fs::path path;
    std::string complaint;
};

void quarantine(DamagedFile const& file) {
    fs::path target = file.path;
    target += ".bad";
    if (::rename(file.path.c_str(), target.c_str()) != 0) {
        log::warning("cannot rename {} to {}: {}", file.path.string(), target.string(), std::strerror(errno));
        return;
    }
    log::warning("renamed {} to {}", file.path.string(), target.filename().string());
    std::ofstream(target += ".reason") << file.complaint << '\n';  // for people; lost is lost
}

}  // namespace

std::vector<std::byte> read_checkpoint_bytes(fs::path const& path, Trailer trailer) {
    return read_file(path, max_checkpoint_bytes,
                     [&](std::span<std::byte const> first, std::span<std::byte const> last) {
                         require_checkpoint_ends(first, last, path.string(), trailer);
                     });
}

fs::path CheckpointStore::path_of(std::int64_t step) const {
    return folder_ / fmt::format("step-{:012d}.h5", step);
}

std::vector<CheckpointStore::Entry> CheckpointStore::list() const {
    std::vector<Entry> entries;
    for (fs::path const& path : files_in(folder_)) {
        if (auto const step = step_in_name(path.filename().string())) entries.push_back({*step, path});
    }
    std::sort(entries.begin(), entries.end(), [](Entry const& a, Entry const& b) { return a.step > b.step; });
    return entries;
}

std::optional<StoredCheckpoint> CheckpointStore::read_newest_good(DamagedFiles damaged,
                                                                  std::optional<StoredCheckpoint> known) {
    std::vector<Entry> const entries = list();
    if (known && !entries.empty() && entries.front().path == known->path &&
        version_of(known->path) == known->version) {
        good_steps_.insert(known->step);
        return known;
    }
    std::vector<DamagedFile> surely_bad;
    int num_skipped = 0;
    for (Entry const& entry : entries) {
        FileVersion const version = version_of(entry.path);  // before it is read: then newer bytes look newer
        Attempt result = attempt(entry);
        if (!result.good) {
            Attempt second = attempt(entry);
            if (!second.good) {
                log::warning("skipped a checkpoint: {}", second.complaint);
                if (second.complaint == result.complaint)
                    surely_bad.push_back({entry.path, second.complaint});
                ++num_skipped;
                continue;
            }
            log::warning("{} verified only on the second read; check the disk", entry.path.string());
            result = std::move(second);
        }
        good_steps_.insert(entry.step);
        // Only now: while nothing good is found, a person may still want to look at these under their own
        // names.
        if (damaged == DamagedFiles::quarantine)
            std::for_each(surely_bad.begin(), surely_bad.end(), quarantine);
        return StoredCheckpoint{entry.path, entry.step, std::move(*result.good), version};
    }
    auto const files = files_in(folder_);
    auto const num_bad = std::count_if(files.begin(), files.end(),
                                       [](fs::path const& path) { return path.extension() == ".bad"; });
    require(num_skipped == 0 && num_bad == 0, ExitCode::do_not_requeue,
            "{}: none of the {} checkpoints verifies (a fresh start would silently give up the run); restore "
            "one, or start anew "
            "in another --run folder",
            folder_.string(), num_skipped + num_bad);
    return std::nullopt;
}

CheckpointFile CheckpointStore::read(fs::path const& path) {
    return {read_checkpoint_bytes(path, Trailer::required), path.string()};
}

bool CheckpointStore::is_good(Entry const& entry) {
    if (good_steps_.contains(entry.step)) return true;
    bool const good = attempt(entry).good.has_value();
    if (good) good_steps_.insert(entry.step);
    return good;
}

void CheckpointStore::commit(std::int64_t step, std::span<std::byte const> bytes, fs::path const& temp_dir,
                             std::function<void()> const& before_rename) try {
    if (!has_committed_) {
        // A file is not durable in a folder whose own name is not.
        fs::create_directory(folder_);
        sync_path_of(folder_);
        has_committed_ = true;
    }
    Entry const entry{step, path_of(step)};
    if (fs::exists(entry.path)) {
        if (auto const existing = attempt(entry).good) {
            CheckpointFile const mine({bytes.begin(), bytes.end()}, "the new checkpoint");
            if (existing->state_digest() == mine.state_digest()) {
                good_steps_.insert(step);
                return;
            }
            log::warning("{} holds another state of step {} and is replaced", entry.path.string(), step);
        }
    }
    replace_file_durably(entry.path, bytes, temp_dir, before_rename);
    good_steps_.insert(step);
} catch (Error const& error) {
    throw Error(error.code(), fmt::format("the checkpoint of step {} was not saved: {}", step, error.what()));
} catch (fs::filesystem_error const& error) {
    fail(ExitCode::retry, "the checkpoint of step {} was not saved: {}", step, error.what());
}

void CheckpointStore::prune(int keep, fs::path const& temp_dir) {
    int num_good = 0;
    for (Entry const& entry : list()) {
        if (num_good < std::max(keep, min_kept)) {
            if (is_good(entry)) ++num_good;
            continue;
        }
        // By way of the owner's folder: once that is gone, another launch decides what is old.
        fs::path const aside = temp_dir / entry.path.filename();
        bool const removed = ::rename(entry.path.c_str(), aside.c_str()) == 0 && ::unlink(aside.c_str()) == 0;
        if (!removed && errno != ENOENT)
            log::warning("cannot delete the old checkpoint {}: {}", entry.path.string(),
                         std::strerror(errno));
        if (removed) good_steps_.erase(entry.step);
    }
}

}  // namespace holdfast::checkpoint
