// SPDX-License-Identifier: Apache-2.0
#include "report/progress.hpp"

#include <algorithm>
#include <fcntl.h>
#include <stdlib.h>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace holdfast::report {
namespace {

TEST(RenderProgress, ShowsHowFarTheEpochIs) {
    EXPECT_EQ(render_progress({2, 15, 73, 196, 816.6, 62.4}, 120),
              "Epoch 2/15 [========>               ]  37% | 73/196 | 817 images/s | ETA 1:02");
    EXPECT_EQ(render_progress({0, 1, 0, 5, 0, -1}, 120),
              "Epoch 0/1 [>                       ]   0% | 0/5 | 0 images/s | ETA --:--");
    EXPECT_EQ(render_progress({0, 1, 5, 5, 10, 0}, 120),
              "Epoch 0/1 [========================] 100% | 5/5 | 10 images/s | ETA 0:00");
    EXPECT_NE(render_progress({0, 1, 1, 5, 10, 3725}, 120).find("ETA 1:02:05"), std::string::npos);
}

TEST(RenderProgress, NeverFillsTheTerminalsWidth) {
    for (int const columns : {0, 1, 10, 40, 77}) {
        EXPECT_LE(render_progress({2, 15, 73, 196, 817, 62}, columns).size(),
                  static_cast<std::size_t>(std::max(columns - 1, 0)));
    }
}

TEST(RenderProgress, SurvivesNumbersOutOfRange) {
    for (ProgressState const& state : {ProgressState{0, 0, 7, 5, 1e30, 1e30}, ProgressState{0, 0, 0, 0, 0, 0},
                                       ProgressState{0, 0, -1, 5, -1, -1}}) {
        EXPECT_FALSE(render_progress(state, 200).empty());
    }
}

std::string path_of(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

TEST(IsTerminal, OfTerminalsPipesFilesAndDevices) {
    int const terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
    int const end = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
    ASSERT_GE(end, 0);
    EXPECT_TRUE(is_terminal(path_of(end)));
    int pipes[2];
    ASSERT_EQ(::pipe(pipes), 0);
    EXPECT_FALSE(is_terminal(path_of(pipes[1])));
    test::TemporaryFolder const folder;
    EXPECT_FALSE(is_terminal(folder.path().string()));
    EXPECT_FALSE(is_terminal("/dev/null"));
    EXPECT_FALSE(is_terminal("/nonexistent"));
    for (int const fd : {terminal, end, pipes[0], pipes[1]}) ::close(fd);
}

/// What should_show_progress(automatic) says in a child of a process whose stdout is `parent_stdout`, when
/// the child's is `own_stdout`.
bool shown(int parent_stdout, int own_stdout) {
    pid_t const parent = ::fork();
    if (parent == 0) {
        ::dup2(parent_stdout, STDOUT_FILENO);
        pid_t const child = ::fork();
        if (child == 0) {
            ::dup2(own_stdout, STDOUT_FILENO);
            ::_exit(should_show_progress(ProgressMode::automatic) ? 1 : 0);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        ::_exit(WEXITSTATUS(status));
    }
    int status = 0;
    ::waitpid(parent, &status, 0);
    return WEXITSTATUS(status) == 1;
}

TEST(ShouldShowProgress, AsksTheParentToo) {
    int const terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
    int const end = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
    int const null = ::open("/dev/null", O_WRONLY);
    EXPECT_TRUE(shown(end, end));
    EXPECT_FALSE(shown(null, end)) << "mpirun > file: the rank's stdout is a terminal all the same";
    EXPECT_FALSE(shown(end, null)) << "holdfast train > file in a shell";
    EXPECT_TRUE(should_show_progress(ProgressMode::always));
    EXPECT_FALSE(should_show_progress(ProgressMode::never));
    for (int const fd : {terminal, end, null}) ::close(fd);
}

TEST(ProgressBar, DrawsOnlyWhenEnabledAndRemovesItself) {
    testing::internal::CaptureStdout();
    ProgressBar(ProgressMode::never).update({0, 1, 5, 5, 10, 0});
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
    testing::internal::CaptureStdout();
    {
        ProgressBar bar(ProgressMode::always);
        bar.update({0, 1, 5, 5, 10, 0});
        bar.clear();
        bar.clear();
    }
    std::string const output = testing::internal::GetCapturedStdout();
    EXPECT_EQ(output.find("\r\033[KEpoch 0/1"), 0u);
    EXPECT_EQ(output.substr(output.size() - 4), "\r\033[K");
}

}  // namespace
}  // namespace holdfast::report
