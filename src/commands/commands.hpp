// SPDX-License-Identifier: Apache-2.0
// The commands of the program. Each adds its flags to the command line and returns what to run when it is chosen.
#pragma once

#include <functional>
#include <string>

#include "core/exit_code.hpp"

namespace CLI {
class App;
}

namespace holdfast::commands {

/// What a launch was started with; MPI takes it over.
struct Arguments {
    int argc = 0;
    char** argv = nullptr;
};

using Action = std::function<ExitCode(Arguments&)>;

Action add_train(CLI::App& app);
Action add_supervise(CLI::App& app);
Action add_eval(CLI::App& app);
Action add_inspect(CLI::App& app);
Action add_verify(CLI::App& app);
Action add_pack(CLI::App& app);
Action add_info(CLI::App& app);
Action add_bench(CLI::App& app);
Action add_doctor(CLI::App& app);
Action add_replay(CLI::App& app);

/// Parses the command line (flag > environment HOLDFAST_NAME > --config FILE > default) and runs the command.
/// Throws Error; usage errors are Error(usage).
ExitCode run_command_line(Arguments& arguments);

}  // namespace holdfast::commands
