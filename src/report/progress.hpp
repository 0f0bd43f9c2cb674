// SPDX-License-Identifier: Apache-2.0
// The progress bar with the time left. Only for people: never in a log file or a batch job.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace holdfast::report {

/// "auto" draws where the output is a terminal. Under mpirun a rank's stdout is a terminal even when mpirun writes to a file,
/// so then mpirun's own (the parent's) stdout is asked too. `mode` is "auto", "always" or "never".
bool should_show_progress(std::string const& mode);

class Progress {
  public:
    Progress(bool enabled, std::int64_t first_step, std::int64_t end_step);
    /// Redraws at most four times a second.
    void update(std::int64_t steps_done, std::int64_t samples_of_step);
    /// Erases the bar, so that a line can be printed.
    void clear();

  private:
    bool enabled_;
    bool is_drawn_ = false;
    std::int64_t first_step_;
    std::int64_t end_step_;
    std::int64_t samples_ = 0;
    std::chrono::steady_clock::time_point start_;
    std::chrono::steady_clock::time_point last_drawn_;
};

}  // namespace holdfast::report
