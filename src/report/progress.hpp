// SPDX-License-Identifier: Apache-2.0
// A bar that shows how far the epoch is, redrawn in place on stdout; for terminals only, so that log files
// stay clean.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace holdfast::report {

enum class ProgressMode { automatic, always, never };

/// Whether a bar should be drawn. Automatic: if this process's stdout and its parent's are both terminals.
/// Under mpirun a rank's stdout is always a terminal, and only the parent (mpirun) knows where the output
/// goes.
bool should_show_progress(ProgressMode mode);

/// Whether what `path` names (/proc/PID/fd/N) is open to a terminal.
bool is_terminal(std::string const& path);

struct ProgressState {
    std::int64_t epoch = 0;
    std::int64_t num_epochs = 0;
    std::int64_t step = 0;  ///< finished steps of the epoch
    std::int64_t num_steps = 0;
    double images_per_s = 0;
    double remaining_s = 0;  ///< of the epoch; negative: not known yet
};

/// "Epoch 2/15 [=======>            ]  37% | 73/196 | 817 images/s | ETA 1:02", cut to `columns`.
std::string render_progress(ProgressState const& state, int columns);

class ProgressBar {
  public:
    explicit ProgressBar(ProgressMode mode) : enabled_(should_show_progress(mode)) {}
    ~ProgressBar() { clear(); }
    ProgressBar(ProgressBar const&) = delete;
    ProgressBar& operator=(ProgressBar const&) = delete;

    bool enabled() const { return enabled_; }
    /// Draws at most ten times a second, and the epoch's last step always.
    void update(ProgressState const& state);
    /// Removes the bar: before every other line of output.
    void clear();

  private:
    bool enabled_;
    bool drawn_ = false;
    std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace holdfast::report
