// SPDX-License-Identifier: Apache-2.0
#include "core/child_process.hpp"

#include <csignal>
#include <cstdlib>
#include <unistd.h>

#include <gtest/gtest.h>

namespace holdfast {
namespace {

using namespace std::chrono_literals;

TEST(ChildProcess, CodeAndOutput) {
    ChildEnd const ended = run_program({"sh", "-c", "echo out; echo err >&2; exit 7"}, 60s);
    EXPECT_TRUE(ended.has_ended);
    EXPECT_EQ(ended.code, 7);
    EXPECT_EQ(ended.output, "out\nerr\n");
}

TEST(ChildProcess, MoreOutputThanAPipeHolds) {
    ChildEnd const ended = run_program({"sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"}, 60s);
    EXPECT_EQ(ended.code, 0);
    EXPECT_EQ(ended.output, std::string(300000, 'x'));
}

TEST(ChildProcess, EndsByASignal) {
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

TEST(ChildProcess, IsKilledWhenItsTimeIsUp) {
    ChildEnd const ended = run_program({"sh", "-c", "echo here; sleep 600 & wait"}, 1s);
    EXPECT_FALSE(ended.has_ended);
    EXPECT_EQ(ended.output, "here\n");
}

TEST(ChildProcess, ThatIsNotThere) { EXPECT_EQ(run_program({"no-such-program-anywhere"}, 60s).code, 127); }

TEST(ChildProcess, LeavesTheParentAlone) {
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
