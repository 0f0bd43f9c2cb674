// SPDX-License-Identifier: Apache-2.0
#include "report/progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/core.h>

namespace holdfast::report {
namespace {

constexpr int bar_width = 24;
constexpr int usual_columns = 80;

std::string duration(double seconds) {
    auto const total = static_cast<std::int64_t>(std::lround(std::min(seconds, 359999.0)));  // 99:59:59
    std::int64_t const hours = total / 3600, minutes = total / 60 % 60;
    if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
    return fmt::format("{}:{:02}", minutes, total % 60);
}

int terminal_columns() {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual_columns;
}

}  // namespace

bool is_terminal(std::string const& path) {
    struct stat status {};
    // Only devices are opened: opening a pipe or a file has effects.
    if (::stat(path.c_str(), &status) != 0 || !S_ISCHR(status.st_mode)) return false;
    int const fd = ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    bool const terminal = ::isatty(fd) != 0;
    ::close(fd);
    return terminal;
}

bool should_show_progress(ProgressMode mode) {
    switch (mode) {
        case ProgressMode::always:
            return true;
        case ProgressMode::never:
            return false;
        case ProgressMode::automatic:
            break;
    }
    return ::isatty(STDOUT_FILENO) != 0 && is_terminal(fmt::format("/proc/{}/fd/1", ::getppid()));
}

std::string render_progress(ProgressState const& state, int columns) {
    std::int64_t const steps = std::max<std::int64_t>(state.num_steps, 1);
    std::int64_t const step = std::clamp<std::int64_t>(state.step, 0, steps);
    int const filled = static_cast<int>(step * bar_width / steps);
    std::string bar(static_cast<std::size_t>(filled), '=');
    if (filled < bar_width) bar += '>';
    bar.resize(bar_width, ' ');
    std::string const eta = state.remaining_s < 0 ? "--:--" : duration(state.remaining_s);
    std::string line = fmt::format("Epoch {}/{} [{}] {:3}% | {}/{} | {:.0f} images/s | ETA {}", state.epoch,
                                   state.num_epochs, bar, step * 100 / steps, step, state.num_steps,
                                   state.images_per_s, eta);
    // A line as wide as the terminal would wrap, and then clearing removes only its last part.
    line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(columns - 1, 0))));
    return line;
}

void ProgressBar::update(ProgressState const& state) {
    if (!enabled_) return;
    auto const now = std::chrono::steady_clock::now();
    if (drawn_ && state.step < state.num_steps && now - last_draw_ < std::chrono::milliseconds(100)) return;
    last_draw_ = now;
    drawn_ = true;
    fmt::print("\r\033[K{}", render_progress(state, terminal_columns()));
    std::fflush(stdout);
}

void ProgressBar::clear() {
    if (!drawn_) return;
    drawn_ = false;
    fmt::print("\r\033[K");
    std::fflush(stdout);
}

}  // namespace holdfast::report
