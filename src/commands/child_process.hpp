// SPDX-License-Identifier: Apache-2.0
// A program in a session of its own. It has no terminal, so Ctrl-C reaches only who started it; and what it starts on this host
// stays in the session, also when the program itself is dead, and can be waited for and ended.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace holdfast::commands {

struct ChildOutput {
    int out = -1;  ///< file descriptors; -1: that of this process
    int error = -1;
};

class ChildProcess {
  public:
    /// Starts `command`, whose first word is the path of a program. Its input is empty. Should this process die it gets `signal_if_orphaned`. Throws Error(retry) where no process can be made.
    ChildProcess(std::vector<std::string> const& command, ChildOutput output, int signal_if_orphaned);
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

}  // namespace holdfast::commands
