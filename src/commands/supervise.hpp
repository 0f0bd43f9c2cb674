// SPDX-License-Identifier: Apache-2.0
// What holdfast supervise does after a launch has ended. The program's own record decides (RUN/outcome.json); codes get lost on
// the way through mpirun.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "train/outcome.hpp"

namespace holdfast::commands {

struct LaunchEnd {
    int code = 0;  ///< of the outcome, else of mpirun: 128 + N after signal N
    std::string reason;
    bool asked_to_stop = false;  ///< a rank was, by a signal, RUN/drain or the time
};

/// The number of the run's newest launch, before and after the one that ended.
struct NewestLaunch {
    std::int64_t before = 0;
    std::int64_t now = 0;
};

/// How a launch ended that left mpirun with `mpirun_code`. `outcome` is what the run directory holds now; it is of this launch if
/// that is the newest one and was not there before. `takes_run`: not with --dry-run or --print-config, which leave no trace.
LaunchEnd end_of_launch(std::optional<train::LaunchOutcome> const& outcome, NewestLaunch const& newest,
                        int mpirun_code, bool takes_run);

struct Decision {
    bool starts_again = false;
    int code = 0;          ///< to end with
    std::string sentence;  ///< for people
};

/// `stop_requested`: of supervise, by a signal. `restarts` were made so far.
Decision after_launch(LaunchEnd const& end, bool stop_requested, std::int64_t restarts,
                      std::int64_t max_restarts);

/// The wait before restart number `restart` (from 1): what broke the launch may need a moment to pass.
std::chrono::seconds back_off(std::int64_t restart);

}  // namespace holdfast::commands
