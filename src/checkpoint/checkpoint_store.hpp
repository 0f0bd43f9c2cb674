// SPDX-License-Identifier: Apache-2.0
// The folder RUN/checkpoints: which of its files is the run's state, and how a new one is committed. There is
// no pointer to the latest: names are scanned and the newest file that verifies wins. Only the owner of the
// run (run_ownership.hpp) commits, prunes and sets damaged files aside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "checkpoint/checkpoint_image.hpp"

namespace holdfast::checkpoint {

/// ResNet34 takes 0.2 GB; a file beyond this is not one of ours and would only exhaust the memory.
inline constexpr std::size_t max_checkpoint_bytes = std::size_t{8} << 30;

/// The bytes of a file that begins and ends like a checkpoint; no more is checked (CheckpointFile does). Throws as
/// read_file does, and Error(do_not_requeue) for another kind of file, without reading it all.
std::vector<std::byte> read_checkpoint_bytes(std::filesystem::path const& path, Trailer trailer);

/// Device, inode, size and modification time: another file under the same name, or other bytes in it, differ.
using FileVersion = std::array<std::int64_t, 5>;

struct StoredCheckpoint {
    std::filesystem::path path;
    std::int64_t step = 0;
    CheckpointFile file;
    FileVersion version{};
};

enum class DamagedFiles {
    leave,       ///< for everybody who only reads
    quarantine,  ///< for the owner: renamed to NAME.bad once two reads agree; NAME.bad.reason says why
};

class CheckpointStore {
  public:
    explicit CheckpointStore(std::filesystem::path const& run_dir) : folder_(run_dir / "checkpoints") {}

    struct Entry {
        std::int64_t step = 0;
        std::filesystem::path path;
    };
    /// The files named like checkpoints, newest step first; empty if there is no folder yet.
    std::vector<Entry> list() const;

    /// The newest checkpoint that verifies; warns of each that does not. None if the run has no checkpoint at
    /// all. Throws Error(do_not_requeue) if it has some but none is good, or another format is met;
    /// Error(retry) for disk trouble. `known`: what an earlier call returned; if that still is the newest file and
    /// unchanged, it is not read again.
    std::optional<StoredCheckpoint> read_newest_good(DamagedFiles damaged,
                                                     std::optional<StoredCheckpoint> known = std::nullopt);

    /// This very file. Throws Error(do_not_requeue) if it does not verify.
    static CheckpointFile read(std::filesystem::path const& path);

    /// Makes `bytes` the checkpoint of `step`; on return it is durable. `temp_dir` is the owner's folder;
    /// `before_rename` runs when the bytes are on the disk but have no name yet. A good file of the same
    /// state counts as committed.
    void commit(std::int64_t step, std::span<std::byte const> bytes, std::filesystem::path const& temp_dir,
                std::function<void()> const& before_rename = {});

    /// Deletes what is older than the `keep` newest good checkpoints, of which it leaves at least two. `temp_dir` is the
    /// owner's folder.
    void prune(int keep, std::filesystem::path const& temp_dir);

    std::filesystem::path path_of(std::int64_t step) const;

  private:
    bool is_good(Entry const& entry);

    std::filesystem::path folder_;
    bool has_committed_ = false;
    std::set<std::int64_t> good_steps_;  ///< seen to verify, or committed, by this object
};

}  // namespace holdfast::checkpoint
