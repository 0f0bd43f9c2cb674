// SPDX-License-Identifier: Apache-2.0
// What this host says of itself.
#pragma once

#include <filesystem>
#include <string>

namespace holdfast {

/// As `hostname` gives it.
std::string host_name();
/// Of a file that the system writes, without its end of line; empty if it cannot be read.
std::string first_line_of(std::filesystem::path const& path);

}  // namespace holdfast
