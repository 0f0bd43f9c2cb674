// SPDX-License-Identifier: Apache-2.0
// How a launch ended, for scripts and for the next launch: RUN/outcome.json. It is also all the memory that is needed to tell a run
// that cannot get on from one that is killed a lot.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/exit_code.hpp"

namespace holdfast::train {

struct LaunchOutcome {
    std::int64_t launch = 0;
    ExitCode code = ExitCode::finished;
    std::string reason;
    std::int64_t epoch = 0;
    std::int64_t step = 0;
    std::int64_t saved_step = 0;  ///< of the newest checkpoint
    /// Launches in a row up to this one that ended by an error of their own, or a hang, without a new checkpoint.
    std::int64_t launches_without_progress = 0;
    bool asked_to_stop =
        false;  ///< the code is retry because somebody wanted it: a signal, RUN/drain, the time
};

inline constexpr char outcome_file[] = "outcome.json";

std::string to_json(LaunchOutcome const& outcome);
/// Empty where there is none, or none that can be read.
std::optional<LaunchOutcome> read_outcome(std::filesystem::path const& run_dir);

/// What a launch has to know to say at its end whether the run gets on.
struct ProgressSoFar {
    std::int64_t limit =
        3;  ///< launches without progress after which starting again is not worth it; 0: there is none
    std::int64_t begun_at = 0;  ///< step of the checkpoint this launch went on from
    std::int64_t launches = 0;  ///< without progress, before this one
};

/// `last` is the outcome of the last launch that left one. Launches killed since then left none: they do not count, but what they
/// saved is progress.
ProgressSoFar progress_so_far(std::optional<LaunchOutcome> const& last, std::int64_t begun_at,
                              std::int64_t limit);

enum class EndedBy { request, error };

/// Counts this launch, whose outcome is complete but for the count; the last one that the limit allows becomes do_not_requeue.
LaunchOutcome counted(LaunchOutcome outcome, EndedBy ended_by, ProgressSoFar const& so_far);

}  // namespace holdfast::train
