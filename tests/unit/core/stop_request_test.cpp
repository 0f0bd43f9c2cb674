// SPDX-License-Identifier: Apache-2.0
#include "core/stop_request.hpp"

#include <csignal>

#include <gtest/gtest.h>

namespace holdfast {
namespace {

class StopRequest : public testing::Test {
  protected:
    void SetUp() override {
        request_stop(0);
        install_stop_handlers();
    }
};

TEST_F(StopRequest, IsNotThereUnasked) { EXPECT_EQ(stop_signal(), 0); }

TEST_F(StopRequest, EachSignalSetsTheFlagAndNothingElse) {
    for (int const signal : {SIGUSR1, SIGTERM, SIGINT}) {
        request_stop(0);
        ASSERT_EQ(std::raise(signal), 0);
        EXPECT_EQ(stop_signal(), signal);
    }
}

TEST_F(StopRequest, RepeatedSignalsOfASchedulerAreHarmless) {
    for (int const signal : {SIGUSR1, SIGUSR1, SIGTERM, SIGTERM, SIGINT}) std::raise(signal);
    EXPECT_EQ(stop_signal(), SIGINT);
}

TEST_F(StopRequest, CanComeFromTheProgram) {
    request_stop(SIGTERM);
    EXPECT_EQ(stop_signal(), SIGTERM);
}

TEST_F(StopRequest, TheSecondInterruptEndsTheProcess) {
    auto const interrupt_twice = [] {
        std::raise(SIGINT);
        std::raise(SIGINT);
    };
    EXPECT_EXIT(interrupt_twice(), testing::ExitedWithCode(75), "");
}

TEST_F(StopRequest, NobodyReadingAndAFileTooLongAreNoReasonsToEnd) {
    for (int const signal : {SIGPIPE, SIGXFSZ}) {
        std::signal(signal, SIG_DFL);
        install_stop_handlers();
        ASSERT_EQ(std::raise(signal), 0);
    }
    EXPECT_EQ(stop_signal(), 0);
}

TEST_F(StopRequest, HandlersCanBeInstalledAgainOverForeignOnes) {
    std::signal(SIGUSR1, SIG_IGN);  // as a library may do when it starts
    install_stop_handlers();
    std::raise(SIGUSR1);
    EXPECT_EQ(stop_signal(), SIGUSR1);
}

}  // namespace
}  // namespace holdfast
