// SPDX-License-Identifier: Apache-2.0
// Where a flag's value may come from besides the command line, and the order: flag > environment > configuration file > default.
#pragma once

#include <set>
#include <string>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include "commands/commands.hpp"

namespace holdfast::commands {

/// Gives every flag of `command` its environment variable: --batch-size is HOLDFAST_BATCH_SIZE.
void bind_environment(CLI::App& command);

/// Throws Error(usage) for a variable HOLDFAST_NAME that is neither a flag of any of these commands nor of the scripts, with
/// the nearest name: a misspelt one would be missed. An empty variable counts as not set.
void require_known_environment(std::vector<CLI::App*> const& commands);

/// Throws Error(usage) for a flag that the command line has twice: which of the values was meant?
void require_given_once(CLI::App& command);

/// Sets the flags that neither command line nor environment have set from the TOML file given by --config, if any. Keys are flags
/// without dashes, at the top or in a table named like the command. A file that HOLDFAST_CONFIG names is for all commands: what
/// belongs to others is passed over. Throws Error(usage) for an unknown key or a bad value.
void apply_config_file(CLI::App& command);

/// The flags that were given by command line, environment or file.
std::set<std::string> explicitly_given(CLI::App const& command);

/// What `holdfast train` would make of a command line, for who starts it in other processes.
struct TrainFlags {
    std::string run;
    std::string device;
    std::string replicas;  ///< a number
    std::set<std::string> explicitly_given;
};

/// As that command reads them. Prints what it has to say about them instead, and returns the code to end with, for --help and
/// usage errors.
std::variant<TrainFlags, ExitCode> read_train_flags(Arguments const& arguments);

/// All flags with their values as a TOML file that --config takes.
std::string config_text(CLI::App const& command);

}  // namespace holdfast::commands
