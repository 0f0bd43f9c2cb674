// SPDX-License-Identifier: Apache-2.0
// Commands that only read take a checkpoint file or a run directory.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_image.hpp"

namespace holdfast::commands {

/// Throws Error(do_not_requeue) if there is neither a file nor a folder.
bool is_run_directory(std::string const& file_or_run);

/// Throws Error(do_not_requeue) unless the run has a checkpoint.
void require_checkpoint(bool has_one, std::string const& run);

/// The file itself, or the newest good checkpoint of the run. Throws Error(do_not_requeue) if there is none.
checkpoint::CheckpointFile open_checkpoint(std::string const& file_or_run);

}  // namespace holdfast::commands
