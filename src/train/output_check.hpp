// SPDX-License-Identifier: Apache-2.0
// Whether a launch will be able to write what it is asked to, tried before it computes or changes anything, and for a dry run
// in place of it. Nothing stays behind. A disk can still fail later.
#pragma once

#include <filesystem>

namespace holdfast::train {

/// Makes and removes a folder in the run directory, or the folders that are missing of its path beside their place. Throws
/// Error(do_not_requeue) where the run directory cannot be made, Error(retry) where nothing can be made in it.
void require_writable_run(std::filesystem::path const& run);

/// Opens a file (--log-indices) for appending. Throws Error(do_not_requeue) if that fails. One in a run directory that is still
/// to be made is left to require_writable_run, and pipes and devices are not opened: their readers would notice.
void require_appendable(std::filesystem::path const& file, std::filesystem::path const& run);

}  // namespace holdfast::train
