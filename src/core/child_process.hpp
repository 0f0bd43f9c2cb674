// SPDX-License-Identifier: Apache-2.0
// A process of its own for a program, or for something tried that may end the process or never return. It is in a session of its
// own: it has no terminal, so Ctrl-C reaches only who started it; and what it starts on this host stays in the session, also when
// the program itself is dead, and can be waited for and ended.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace holdfast {

/// What a process wrote, in memory: no disk is needed, and what it left behind may go on writing.
class CapturedText {
  public:
    CapturedText();
    ~CapturedText();
    CapturedText(CapturedText const&) = delete;
    CapturedText& operator=(CapturedText const&) = delete;

    int descriptor() const { return descriptor_; }
    std::string text() const;

  private:
    int descriptor_;
};

class ChildProcess {
  public:
    static constexpr int same_output = -1;  ///< stdout and stderr of this process

    /// Starts `command`, whose first word is looked up in PATH; code 127 if it is not there. Its input is empty; `output` is the
    /// descriptor of both its outputs. Should the calling thread die it gets `signal_if_orphaned`. Throws Error(retry) where no
    /// process can be made.
    ChildProcess(std::vector<std::string> command, int output, int signal_if_orphaned);
    /// Runs `body`, and ends with the code that it returns. In a process with threads `body` may only exec.
    ChildProcess(std::function<int()> const& body, int output, int signal_if_orphaned);
    /// Kills what is left.
    ~ChildProcess();
    ChildProcess(ChildProcess const&) = delete;
    ChildProcess& operator=(ChildProcess const&) = delete;

    pid_t pid() const { return pid_; }
    /// Once the program has ended: its code as a shell has it, 128 + N after signal N.
    std::optional<int> exit_code();
    /// Whether the program and all that it started here have ended.
    bool has_ended();
    /// To the program alone.
    void signal(int number);
    /// To all that is left of the session.
    void kill_session();

  private:
    pid_t pid_ = -1;
    std::optional<int> exit_code_;
};

struct ChildEnd {
    bool has_ended = false;  ///< else its time was up, and it was killed
    int code = 0;
    std::string output;  ///< stdout and stderr
};

/// Both run to the end, or until the time is up.
ChildEnd run_child(std::function<int()> const& body, std::chrono::milliseconds time_limit);
ChildEnd run_program(std::vector<std::string> command, std::chrono::milliseconds time_limit);

}  // namespace holdfast
