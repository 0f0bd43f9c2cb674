// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"

#include <string>

#include <gtest/gtest.h>

namespace holdfast {
namespace {

struct Output {
    std::string out;
    std::string err;
};

/// What this rank prints when it says everything there is to say.
Output say_all(int rank, int num_ranks) {
    log::set_rank(rank, num_ranks, "node17");
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    log::write_info("information");
    log::write_warning("doubt");
    log::write_error("mine");
    log::write_agreed_error("ours");
    log::write_last_line(93, "ours");
    EXPECT_EQ(log::rank(), rank);
    EXPECT_EQ(log::num_ranks(), num_ranks);
    return {testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

TEST(Log, OneRankSpeaksWithoutPrefix) {
    Output const output = say_all(0, 1);
    EXPECT_EQ(output.out, "information\n");
    EXPECT_EQ(output.err, "warning: doubt\nerror: mine\nerror: ours\nEnded with exit code 93: ours\n");
}

TEST(Log, OtherRanksOnlyReportTheirOwnErrors) {
    Output const output = say_all(1, 2);
    EXPECT_EQ(output.out, "");
    EXPECT_EQ(output.err, "[rank 1, node17] error: mine\n");
}

}  // namespace
}  // namespace holdfast
