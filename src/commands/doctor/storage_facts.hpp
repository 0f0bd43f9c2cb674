// SPDX-License-Identifier: Apache-2.0
// The disk of the run directory, as this process finds it. Each may throw, and may never return: call them by within.hpp.
#pragma once

#include <string>

#include "commands/doctor/storage_checks.hpp"

namespace holdfast::commands::doctor {

/// `run`, or the nearest folder above it that exists, "." for a relative one without. Throws Error if that is no folder.
std::string existing_folder(std::string const& run);

/// For messages: as it is where the working directory is gone.
std::string absolute_path(std::string const& folder);

/// Writes a new file with `text` in `folder` and syncs it. Throws Error with the system's reason.
void write_nonce(std::string const& folder, std::string const& name, std::string const& text);
void remove_nonce(std::string const& folder, std::string const& name);
/// Why the file with `text` is not there, after a second of looking again; empty if it is.
std::string look_for_nonce(std::string const& folder, std::string const& name, std::string const& text);

/// Writes a file without a name.
SyncTimes measure_sync(std::string const& folder);
Space space_of(std::string const& folder);
Checkpoints checkpoints_of(std::string const& run);

}  // namespace holdfast::commands::doctor
