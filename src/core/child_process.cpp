// SPDX-License-Identifier: Apache-2.0
#include "core/child_process.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace holdfast {
namespace {

constexpr int not_started = 127;  // the shell's code for it

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/// Adds what can be read within `wait_ms`. False at the end of the stream.
bool read_some(int descriptor, int wait_ms, std::string& text) {
    pollfd readable{descriptor, POLLIN, 0};
    if (poll(&readable, 1, wait_ms) <= 0) return true;
    std::array<char, 4096> part{};
    ssize_t const length = read(descriptor, part.data(), part.size());
    if (length > 0) text.append(part.data(), static_cast<std::size_t>(length));
    return length > 0 || (length < 0 && errno == EINTR);
}

}  // namespace

ChildEnd run_child(std::function<int()> const& body, std::chrono::milliseconds time_limit) {
    auto const end = std::chrono::steady_clock::now() + time_limit;
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return {true, not_started, std::strerror(errno)};
    pid_t const child = fork();
    if (child == 0) {
        setpgid(0, 0);  // what it starts ends with it
        for (int const output : {STDOUT_FILENO, STDERR_FILENO}) dup2(ends[1], output);
        _exit(body());
    }
    close(ends[1]);
    ChildEnd result;
    if (child < 0) {
        close(ends[0]);
        return {true, not_started, std::strerror(errno)};
    }
    int status = 0;
    bool is_open = true;
    while (!result.has_ended && std::chrono::steady_clock::now() < end) {
        constexpr int tick_ms = 10;
        if (is_open)
            is_open = read_some(ends[0], tick_ms, result.output);
        else
            poll(nullptr, 0, tick_ms);
        result.has_ended = waitpid(child, &status, WNOHANG) == child;
    }
    if (!result.has_ended) {
        kill(-child, SIGKILL);
        kill(child, SIGKILL);  // it may not have come to setpgid
        waitpid(child, &status, 0);
    }
    for (std::size_t before = 1; is_open && before != 0;) {  // what it said last
        std::size_t const length = result.output.size();
        is_open = read_some(ends[0], 0, result.output);
        before = result.output.size() - length;
    }
    close(ends[0]);
    result.code = code_of(status);
    return result;
}

ChildEnd run_program(std::vector<std::string> command, std::chrono::milliseconds time_limit) {
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    return run_child(
        [&] {
            execvp(arguments[0], arguments.data());
            return not_started;
        },
        time_limit);
}

}  // namespace holdfast
