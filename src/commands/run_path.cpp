// SPDX-License-Identifier: Apache-2.0
#include "commands/run_path.hpp"

#include <filesystem>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_store.hpp"
#include "core/error.hpp"

namespace holdfast::commands {

bool is_run_directory(std::string const& file_or_run) {
    std::error_code error;  // a loop of links exists for nobody
    require(std::filesystem::exists(file_or_run, error), ExitCode::do_not_requeue,
            "{} does not exist; give a checkpoint file or a run directory", file_or_run);
    return std::filesystem::is_directory(file_or_run);
}

void require_checkpoint(bool has_one, std::string const& run) {
    require(has_one, ExitCode::do_not_requeue,
            "{} holds no checkpoint (no checkpoints/step-*.h5); give a run directory", run);
}

checkpoint::CheckpointFile open_checkpoint(std::string const& file_or_run) {
    if (!is_run_directory(file_or_run)) return checkpoint::CheckpointStore::read(file_or_run);
    auto newest = checkpoint::CheckpointStore(file_or_run).read_newest_good(checkpoint::DamagedFiles::leave);
    require_checkpoint(newest.has_value(), file_or_run);
    return std::move(newest->file);
}

}  // namespace holdfast::commands
