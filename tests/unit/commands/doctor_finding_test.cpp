// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/doctor/finding.hpp"

namespace holdfast::commands::doctor {
namespace {

Findings const some = {{"launcher", State::ok, "2 ranks", "", ""},
                       {"binding", State::warning, "1 of 8 cores\n2 of 8 cores", "slow", "unbind"},
                       {"requeue", State::unknown, "", "no scontrol", ""},
                       {"space", State::error, "full", "lost", "rm"}};

TEST(Finding, TakesAMessageApart) {
    Finding const finding =
        finding_of("devices", State::error, "2 of 4 ranks see (NCCL needs (one) each); try (this); or that");
    EXPECT_EQ(finding.check, "devices");
    EXPECT_EQ(finding.seen, "2 of 4 ranks see");
    EXPECT_EQ(finding.why, "NCCL needs (one) each");
    EXPECT_EQ(finding.fix, "try (this); or that");
}

TEST(Finding, AMessageOfAnotherFormIsSeenWhole) {
    for (std::string const message : {"no parentheses", "opened ( and no more", "closed); only", ""}) {
        Finding const finding = finding_of("x", State::error, message);
        EXPECT_EQ(finding.seen, message);
        EXPECT_EQ(finding.why + finding.fix, "");
    }
}

TEST(Finding, CountsAndNamesStates) {
    EXPECT_EQ(count(some, State::error), 1);
    EXPECT_EQ(count(some, State::ok), 1);
    EXPECT_EQ(count({}, State::error), 0);
    EXPECT_STREQ(name_of(State::unknown), "unknown");
    EXPECT_STREQ(name_of(State::ok), "ok");
    EXPECT_STREQ(name_of(State::warning), "warning");
    EXPECT_STREQ(name_of(State::error), "error");
}

TEST(Finding, WorstOfAllRanksNamesTheFirstThatHasIt) {
    std::vector<std::string> const hosts = {"node1", "node1", "node2"};
    Finding const ok{"nccl", State::ok, "once", "", ""};
    Finding const warning{"nccl", State::warning, "another", "lost", "unset"};
    Finding const error{"nccl", State::error, "two", "lost", "unset"};
    EXPECT_EQ(worst_of({ok, ok, ok}, hosts).seen, "once");
    Finding const worst = worst_of({ok, warning, error}, hosts);
    EXPECT_EQ(worst.state, State::error);
    EXPECT_EQ(worst.seen, "rank 2 (node2): two");
    EXPECT_EQ(worst.why, "lost");
    EXPECT_EQ(worst.fix, "unset");
    EXPECT_EQ(worst_of({ok, warning, warning}, hosts).seen, "rank 1 (node1) and 1 others: another");
}

TEST(Finding, TableShowsWhyAndFixBelowWhatIsNotWell) {
    EXPECT_EQ(text_of(some),
              "check     state    seen\n"
              "launcher  ok       2 ranks\n"
              "binding   warning  1 of 8 cores\n"
              "                   2 of 8 cores\n"
              "                   why: slow\n"
              "                   fix: unbind\n"
              "requeue   unknown  \n"
              "                   why: no scontrol\n"
              "space     error    full\n"
              "                   why: lost\n"
              "                   fix: rm\n"
              "1 errors, 1 warnings, 1 not known");
}

TEST(Finding, TroubleIsSilentWhenAllIsWell) {
    EXPECT_EQ(trouble_of({some[0], some[2]}), "");
    EXPECT_EQ(trouble_of({some[0], some[3]}), "error: space: full (lost); rm\n");
}

}  // namespace
}  // namespace holdfast::commands::doctor
