// SPDX-License-Identifier: Apache-2.0
#include "core/child_process.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

std::vector<std::string> shell(std::string const& script) { return {"/bin/sh", "-c", script}; }

template <typename Condition>
void wait_until(Condition const& condition) {
    for (auto const end = std::chrono::steady_clock::now() + 60s;
         !condition() && std::chrono::steady_clock::now() < end;)
        std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(condition());
}

int code_of(ChildProcess& child) {
    wait_until([&] { return child.exit_code().has_value(); });
    return child.exit_code().value_or(-1);
}

std::string text_of(std::filesystem::path const& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ChildProcess, EndsWithTheCodeThatAShellWouldSee) {
    for (auto const& [script, code] :
         {std::pair("exit 0", 0), std::pair("exit 93", 93), std::pair("kill -KILL $$", 137)}) {
        ChildProcess child(shell(script), ChildProcess::same_output, SIGKILL);
        EXPECT_EQ(code_of(child), code) << script;
        EXPECT_TRUE(child.has_ended());
    }
}

TEST(ChildProcess, ThatDoesNotExistEndsWith127) {
    ChildProcess child({"/does/not/exist"}, ChildProcess::same_output, SIGKILL);
    EXPECT_EQ(code_of(child), 127);
}

TEST(ChildProcess, HasWordsAsTheyAreItsOutputAndNoInput) {
    test::TemporaryFolder const folder;
    auto const path = folder.path() / "output";
    int const file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ChildProcess child({"/bin/sh", "-c", "cat; echo \"$1\"; echo wrong >&2", "sh", "it's \"$HOME\""}, file,
                       SIGKILL);
    EXPECT_EQ(code_of(child), 0);
    ::close(file);
    EXPECT_EQ(text_of(path), "it's \"$HOME\"\nwrong\n");
}

TEST(ChildProcess, HasASessionOfItsOwnAndSignalsAsUsual) {
    test::TemporaryFolder const folder;
    sigset_t blocked, before;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &blocked, &before);
    auto const pipe_handler = std::signal(SIGPIPE, SIG_IGN);
    ChildProcess child({"/bin/sleep", "60"}, ChildProcess::same_output, SIGKILL);
    wait_until([&] { return ::getsid(child.pid()) == child.pid(); });
    wait_until([&] { return text_of("/proc/" + std::to_string(child.pid()) + "/comm") == "sleep\n"; });
    std::string const status = text_of("/proc/" + std::to_string(child.pid()) + "/status");
    EXPECT_NE(status.find("SigBlk:\t0000000000000000"), std::string::npos) << status;
    EXPECT_NE(status.find("SigIgn:\t0000000000000000"), std::string::npos) << status;
    child.signal(SIGTERM);
    EXPECT_EQ(code_of(child), 143);
    std::signal(SIGPIPE, pipe_handler);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST(ChildProcess, HasNotEndedWhileSomethingThatItStartedIsThere) {
    ChildProcess child(shell("sleep 60 & exit 7"), ChildProcess::same_output, SIGKILL);
    EXPECT_EQ(code_of(child), 7);
    EXPECT_FALSE(child.has_ended());
    child.kill_session();
    wait_until([&] { return child.has_ended(); });
    EXPECT_EQ(child.exit_code(), 7);
}

TEST(ChildProcess, LeavesNothingBehind) {
    test::TemporaryFolder const folder;
    auto const pid_file = folder.path() / "pid";
    {
        ChildProcess child({"/bin/sh", "-c", "sleep 60 & echo $! > \"$1\"; wait", "sh", pid_file.string()},
                           ChildProcess::same_output, SIGKILL);
        wait_until([&] { return text_of(pid_file).ends_with("\n"); });
    }
    pid_t const grandchild = std::stoi(text_of(pid_file));
    wait_until([&] {
        std::string const stat = text_of("/proc/" + std::to_string(grandchild) + "/stat");
        return stat.empty() || stat.find(") Z ") != std::string::npos;
    });
}

TEST(ChildProcess, GetsItsSignalWhenItsParentDies) {
    test::TemporaryFolder const folder;
    auto const ready = folder.path() / "ready", told = folder.path() / "told";
    pid_t const parent = ::fork();
    if (parent == 0) {
        ChildProcess const child(
            {"/bin/sh", "-c",
             "trap 'echo told > \"$2\"; exit' USR1; echo > \"$1\"; while :; do sleep 0.05; done", "sh",
             ready.string(), told.string()},
            ChildProcess::same_output, SIGUSR1);
        for (;;) ::pause();
    }
    wait_until([&] { return !text_of(ready).empty(); });
    ::kill(parent, SIGKILL);
    ::waitpid(parent, nullptr, 0);
    wait_until([&] { return text_of(told) == "told\n"; });
}

TEST(RunToTheEnd, CodeAndOutput) {
    ChildEnd const ended = run_program({"sh", "-c", "echo out; echo err >&2; exit 7"}, 60s);
    EXPECT_TRUE(ended.has_ended);
    EXPECT_EQ(ended.code, 7);
    EXPECT_EQ(ended.output, "out\nerr\n");
}

TEST(RunToTheEnd, MoreOutputThanAPipeHolds) {
    ChildEnd const ended = run_program({"sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"}, 60s);
    EXPECT_EQ(ended.code, 0);
    EXPECT_EQ(ended.output, std::string(300000, 'x'));
}

TEST(RunToTheEnd, EndsByASignal) {
    EXPECT_EQ(run_child([] { return raise(SIGKILL); }, 60s).code, 128 + SIGKILL);
    EXPECT_EQ(run_child(
                  [] {
                      std::abort();
                      return 0;
                  },
                  60s)
                  .code,
              128 + SIGABRT);
}

TEST(RunToTheEnd, IsKilledWhenItsTimeIsUp) {
    ChildEnd const ended = run_program({"sh", "-c", "echo here; sleep 600 & wait"}, 1s);
    EXPECT_FALSE(ended.has_ended);
    EXPECT_EQ(ended.output, "here\n");
}

TEST(RunToTheEnd, ThatIsNotThere) { EXPECT_EQ(run_program({"no-such-program-anywhere"}, 60s).code, 127); }

TEST(RunToTheEnd, LeavesTheParentAlone) {
    int value = 1;
    EXPECT_EQ(run_child(
                  [&] {
                      value = 2;
                      return value;
                  },
                  60s)
                  .code,
              2);
    EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace holdfast
