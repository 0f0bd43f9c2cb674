// SPDX-License-Identifier: Apache-2.0
// One launch of train, from MPI's start to its end. (Its flags: train_flags.cpp; how it begins: train_start.hpp; how it ends:
// train_end.hpp.)
#pragma once

#include "commands/commands.hpp"
#include "commands/train_start.hpp"

namespace holdfast::commands {

/// Throws what ended the launch otherwise, after the outcome is written.
ExitCode run_train(TrainOptions const& options, Arguments& arguments);

}  // namespace holdfast::commands
