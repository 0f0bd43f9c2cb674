// SPDX-License-Identifier: Apache-2.0
// How a launch of train ends, wherever that is: what RUN/outcome.json says of it, and whether starting again is worth it.
#pragma once

#include <memory>
#include <string>

#include "commands/train_start.hpp"
#include "core/error.hpp"
#include "parallel/communicator.hpp"
#include "train/outcome.hpp"
#include "train/run_directory.hpp"
#include "train/run_state.hpp"

namespace holdfast::commands {

/// What the end of a launch has to know of it, wherever it ends.
struct Launch {
    FoundRun found;
    train::RunState state;
    std::unique_ptr<train::RunDirectory> run_directory;  ///< on rank 0, once the run is its own
    train::ProgressSoFar progress;                       ///< on rank 0
};

/// Rank 0: the outcome of a launch that an error ends, and whether it is worth another. The error matters more than that writing
/// may fail too.
Error note_failure(Launch& launch, TrainOptions const& options, ExitCode code, std::string const& reason);

/// Collective, which it can be because all ranks have this error: what they end with. Returns on no rank before rank 0 has
/// written the outcome, so that none ends the others too early.
AgreedError collective_note_failure(parallel::Communicator const& world, Launch& launch,
                                    TrainOptions const& options, AgreedError const& error);

/// Rank 0, after the last save: the closing line, outcome.json, and the run is free for the next launch.
void end_launch(Launch& launch, ExitCode code, std::string const& stop_reason);

/// Rank 0, for a launch that has nothing to do: the outcome says so, unless it does already.
void note_end_without_training(Launch const& launch, TrainOptions const& options, ExitCode code,
                               char const* reason);

}  // namespace holdfast::commands
