// SPDX-License-Identifier: Apache-2.0
// Files as a crash leaves them: read whole or not at all, replaced as a whole or not at all, and on the disk
// when a function returns. Disk trouble is Error(retry); a vanished temporary folder means that another
// launch has taken the run over and is Error(owned_elsewhere).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
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

/// Appends `line` and a newline. A row that a crash cut off is ended first, so it spoils no other. Until sync_appended a power
/// cut may take the line away.
void append_line(std::filesystem::path const& path, std::string_view line);
/// `is_new`: the file's name is not durable either.
void sync_appended(std::filesystem::path const& path, bool is_new);

void sync_folder(std::filesystem::path const& folder);

/// Makes the names of `folder` and of all folders above it durable, for who may just have created them.
void sync_path_of(std::filesystem::path const& folder);

}  // namespace holdfast::checkpoint
