// SPDX-License-Identifier: Apache-2.0
// The program's own messages. Rank 0 speaks; the other ranks only when something is wrong, with rank and host in front.
// Information goes to stdout, warnings and errors to stderr, and all of it into the log file once there is a run directory.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace holdfast::log {

/// Who speaks, from the moment the rank is known. Before this, everything is printed.
void set_rank(int rank, int num_ranks, std::string const& host);

/// As given to set_rank; before that, 0 of 1.
int rank();
int num_ranks();

/// Appends all further messages to `path` too (rank 0 calls it once the run directory is its own).
void open_file(std::string const& path);

void write_info(std::string_view message);
void write_warning(std::string_view message);
void write_error(std::string_view message);
/// An error for stderr alone: for when what hangs may be the disk of the log file.
void write_error_to_terminal(std::string_view message);
/// An error that all ranks share: rank 0 prints it.
void write_agreed_error(std::string_view message);
/// Says an error again, for people only, below what others have printed since.
void write_last_line(int exit_code, std::string_view message);

/// Printed by rank 0 only.
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
    write_info(fmt::format(format, std::forward<Args>(args)...));
}

/// Printed by rank 0 only, to stderr, after "warning: ".
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
    write_warning(fmt::format(format, std::forward<Args>(args)...));
}

/// Printed by the rank it happens on, to stderr, after "error: ".
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
    write_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace holdfast::log
