// SPDX-License-Identifier: Apache-2.0
#include "core/child_process.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "core/error.hpp"
#include "core/process_stat.hpp"

namespace holdfast {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::vector<pid_t> living_processes_of(pid_t session) {
    std::vector<pid_t> pids;
    std::error_code error;
    for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
        std::string const name = it->path().filename().string();
        pid_t pid = 0;
        auto const [rest, no_number] = std::from_chars(name.data(), name.data() + name.size(), pid);
        if (no_number != std::errc{} || rest != name.data() + name.size()) continue;
        auto const stat = process_stat(name);
        if (stat.empty() || stat[stat_state] == "Z" || stat[stat_state] == "X") continue;
        if (stat[stat_session] == std::to_string(session)) pids.push_back(pid);
    }
    return pids;
}

/// In the child, where only what is safe in a signal handler may be called until `body`.
[[noreturn]] void become(std::function<int()> const& body, int output, int signal_if_orphaned, pid_t parent) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, signal_if_orphaned);
    if (::getppid() != parent) ::_exit(128 + SIGKILL);  // it died before that
    if (int const null = ::open("/dev/null", O_RDONLY); null >= 0) ::dup2(null, STDIN_FILENO);
    if (output != ChildProcess::same_output)
        for (int const stream : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(output, stream);
    for (int const ours : {SIGPIPE, SIGXFSZ, SIGUSR1, SIGTERM, SIGINT, SIGCHLD}) ::signal(ours, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::_exit(body());
}

/// For ChildProcess to run: a body that becomes the program.
std::function<int()> program(std::vector<std::string>& command) {
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    return [arguments] {
        ::execvp(arguments[0], arguments.data());
        return 127;  // the shell's code for it
    };
}

ChildEnd run(auto&& what, std::chrono::milliseconds time_limit) {
    using namespace std::chrono_literals;
    CapturedText const output;
    auto const end = Clock::now() + time_limit;
    ChildProcess child(std::forward<decltype(what)>(what), output.descriptor(), SIGKILL);
    while (!child.exit_code() && Clock::now() < end) std::this_thread::sleep_for(10ms);
    auto const code = child.exit_code();
    return {code.has_value(), code.value_or(128 + SIGKILL), output.text()};
}

}  // namespace

CapturedText::CapturedText() : descriptor_(::memfd_create("output", MFD_CLOEXEC)) {
    require(descriptor_ >= 0, ExitCode::retry, "cannot make a file in memory: {}", std::strerror(errno));
}

CapturedText::~CapturedText() { ::close(descriptor_); }

std::string CapturedText::text() const {
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t length = 0;
         (length = ::pread(descriptor_, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0;)
        text.append(part.data(), static_cast<std::size_t>(length));
    return text;
}

ChildProcess::ChildProcess(std::vector<std::string> command, int output, int signal_if_orphaned)
    : ChildProcess(program(command), output, signal_if_orphaned) {}

ChildProcess::ChildProcess(std::function<int()> const& body, int output, int signal_if_orphaned) {
    pid_t const self = ::getpid();
    ::signal(SIGCHLD, SIG_DFL);  // where it is inherited as ignored, nobody learns how a child ended
    pid_ = ::fork();
    if (pid_ == 0) become(body, output, signal_if_orphaned, self);
    require(pid_ > 0, ExitCode::retry, "cannot start a process: {}", std::strerror(errno));
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

ChildEnd run_child(std::function<int()> const& body, std::chrono::milliseconds time_limit) {
    return run(body, time_limit);
}

ChildEnd run_program(std::vector<std::string> command, std::chrono::milliseconds time_limit) {
    return run(std::move(command), time_limit);
}

}  // namespace holdfast
