// SPDX-License-Identifier: Apache-2.0
#include "core/error.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"

namespace holdfast {
namespace {

TEST(Error, CarriesCodeAndMessage) {
    test::expect_error([] { fail(ExitCode::retry, "{} of {}", 3, "steps"); }, {"3 of steps"},
                       ExitCode::retry);
    test::expect_error([] { require(false, ExitCode::usage, "bad --{}", "lr"); }, {"bad --lr"},
                       ExitCode::usage);
}

TEST(Error, RequireAcceptsWhatHolds) { EXPECT_NO_THROW(require(true, ExitCode::usage, "never seen")); }

TEST(Error, AnAgreedErrorIsAnError) {
    test::expect_error([] { throw AgreedError(ExitCode::owned_elsewhere, "on all ranks"); }, {"on all ranks"},
                       ExitCode::owned_elsewhere);
}

TEST(ExitCode, NeverChangesMeaning) {
    EXPECT_EQ(static_cast<int>(ExitCode::finished), 0);
    EXPECT_EQ(static_cast<int>(ExitCode::internal_error), 1);
    EXPECT_EQ(static_cast<int>(ExitCode::usage), 2);
    EXPECT_EQ(static_cast<int>(ExitCode::retry), 75);
    EXPECT_EQ(static_cast<int>(ExitCode::do_not_requeue), 93);
    EXPECT_EQ(static_cast<int>(ExitCode::owned_elsewhere), 94);
}

}  // namespace
}  // namespace holdfast
