// SPDX-License-Identifier: Apache-2.0
// Something tried in a process of its own, because it may end the process, or never return.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace holdfast {

struct ChildEnd {
    bool has_ended = false;  ///< else its time was up, and it was killed
    int code = 0;            ///< exit code, or 128 + the signal; 127: not started
    std::string output;      ///< stdout and stderr
};

/// Runs `body` in a forked child, which ends with the code that it returns. In a process with threads `body` may only exec.
ChildEnd run_child(std::function<int()> const& body, std::chrono::milliseconds time_limit);

/// Runs a program that is looked up in PATH.
ChildEnd run_program(std::vector<std::string> command, std::chrono::milliseconds time_limit);

}  // namespace holdfast
