// SPDX-License-Identifier: Apache-2.0
// Files as a crash leaves them: read whole or not at all, replaced as a whole or not at all, and on the disk
// when a function returns. Disk trouble is Error(retry); a vanished temporary folder means that another
// launch has taken the run over and is Error(owned_elsewhere).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::checkpoint {

/// Sees the first and the last bytes of a file, at most `ends_bytes` of each, and throws to refuse the file.
using CheckEnds = std::function<void(std::span<std::byte const> first, std::span<std::byte const> last)>;
inline constexpr std::size_t ends_bytes = 64;

/// The whole file. Throws Error(retry) for trouble that may pass (EIO, ESTALE, EACCES, ...) and
/// Error(do_not_requeue) where there is no regular file or it has more than `max_bytes`. `check_ends` is
/// called before the rest is read: a file of another kind can be large.
std::vector<std::byte> read_file(std::filesystem::path const& path, std::size_t max_bytes,
                                 CheckEnds const& check_ends = {});

/// Writes `content` to a new file in `temp_dir` (of the same file system), syncs it, calls `before_rename`,
/// gives it the name `path` and syncs the folder. When it throws, `path` is as before and the temporary file
/// is gone.
void replace_file_durably(std::filesystem::path const& path, std::span<std::byte const> content,
                          std::filesystem::path const& temp_dir,
                          std::function<void()> const& before_rename = {});

/// The same for a text.
void write_file_durably(std::filesystem::path const& path, std::string_view text,
                        std::filesystem::path const& temp_dir);

/// A text that grows by lines. It is opened as a copy that takes the place of the file before it, so a launch that was
/// written off and wakes later appends to one that has no name any more: an open file obeys no change of ownership.
class AppendedFile {
  public:
    /// A file that is not there is an empty one. `temp_dir` as above; errors as of read_file and replace_file_durably.
    AppendedFile(std::filesystem::path path, std::size_t max_bytes, std::filesystem::path const& temp_dir);
    AppendedFile(AppendedFile const&) = delete;
    AppendedFile& operator=(AppendedFile const&) = delete;
    ~AppendedFile();

    std::string text() const;
    /// Appends `line` and a newline. A row that a crash cut off is ended first, so it spoils no other. Until `sync` a power
    /// cut may take the line away.
    void append_line(std::string_view line);
    void sync();

  private:
    std::size_t size() const;

    std::filesystem::path path_;
    int fd_ = -1;
};

void sync_folder(std::filesystem::path const& folder);

/// Makes the names of `folder` and of all folders above it durable, for who may just have created them.
void sync_path_of(std::filesystem::path const& folder);

}  // namespace holdfast::checkpoint
