// SPDX-License-Identifier: Apache-2.0
#include "commands/child_process.hpp"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "core/error.hpp"

namespace holdfast::commands {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Whether /proc/PID/stat is that of a living process of this session.
bool is_of_session(fs::path const& stat, pid_t session) {
    std::ifstream file(stat);
    std::string line;
    std::getline(file, line);
    auto const end_of_name = line.rfind(')');  // a program's name may contain blanks and brackets
    if (end_of_name == std::string::npos) return false;
    std::istringstream fields(line.substr(end_of_name + 1));
    std::string state;
    pid_t parent = 0, group = 0, of_session = 0;
    fields >> state >> parent >> group >> of_session;  // proc(5)
    return of_session == session && state != "Z" && state != "X";
}

std::vector<pid_t> living_processes_of(pid_t session) {
    std::vector<pid_t> pids;
    std::error_code error;
    for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
        std::string const name = it->path().filename().string();
        pid_t pid = 0;
        auto const [rest, no_number] = std::from_chars(name.data(), name.data() + name.size(), pid);
        if (no_number == std::errc{} && rest == name.data() + name.size() &&
            is_of_session(it->path() / "stat", session))
            pids.push_back(pid);
    }
    return pids;
}

/// In the child, where only what is safe in a signal handler may be called. Does not return.
[[noreturn]] void become(char* const* argv, ChildOutput output, int signal_if_orphaned, pid_t parent) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, signal_if_orphaned);
    if (::getppid() != parent) ::_exit(128 + SIGKILL);  // it died before that
    if (int const null = ::open("/dev/null", O_RDONLY); null >= 0) ::dup2(null, STDIN_FILENO);
    if (output.out >= 0) ::dup2(output.out, STDOUT_FILENO);
    if (output.error >= 0) ::dup2(output.error, STDERR_FILENO);
    for (int const ours : {SIGPIPE, SIGXFSZ, SIGUSR1, SIGTERM, SIGINT}) ::signal(ours, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execv(argv[0], argv);
    ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(std::vector<std::string> const& command, ChildOutput output,
                           int signal_if_orphaned) {
    std::vector<char*> argv;
    for (std::string const& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_t const self = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) become(argv.data(), output, signal_if_orphaned, self);
    int const error = errno;
    require(pid_ > 0, ExitCode::retry, "cannot start {}: {}", command.front(), std::strerror(error));
}

ChildProcess::~ChildProcess() {
    using namespace std::chrono_literals;
    // Not for ever: a process that waits for a dead disk cannot be killed.
    for (auto const end = Clock::now() + 5s; !has_ended() && Clock::now() < end;) {
        kill_session();
        std::this_thread::sleep_for(10ms);
    }
}

std::optional<int> ChildProcess::exit_code() {
    int status = 0;
    if (!exit_code_ && ::waitpid(pid_, &status, WNOHANG) == pid_)
        exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return exit_code_;
}

bool ChildProcess::has_ended() { return exit_code() && living_processes_of(pid_).empty(); }

void ChildProcess::signal(int number) {
    if (!exit_code()) ::kill(pid_, number);
}

void ChildProcess::kill_session() {
    signal(SIGKILL);  // it may not have come to making the session yet
    for (pid_t const pid : living_processes_of(pid_)) ::kill(pid, SIGKILL);
}

}  // namespace holdfast::commands
