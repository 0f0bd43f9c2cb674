// SPDX-License-Identifier: Apache-2.0
// Commands that only read take a checkpoint file or a run directory.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_image.hpp"

namespace holdfast::commands {

/// The file itself, or the newest good checkpoint of the run. Throws Error(do_not_requeue) if there is none.
checkpoint::CheckpointFile open_checkpoint(std::string const& file_or_run);

}  // namespace holdfast::commands
