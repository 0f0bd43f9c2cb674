// SPDX-License-Identifier: Apache-2.0
#include "train/time_limit.hpp"

#include <gtest/gtest.h>

namespace holdfast::train {
namespace {

TEST(StopLead, HasRoomForAStepASaveAndForLeaving) {
    EXPECT_DOUBLE_EQ(stop_lead_s(0, 0), 5);
    EXPECT_DOUBLE_EQ(stop_lead_s(3, 0), 11);
    EXPECT_DOUBLE_EQ(stop_lead_s(0, 10), 25);
    EXPECT_DOUBLE_EQ(stop_lead_s(3, 10), 31);
}

TEST(TimeLimit, IsUpTheLeadBeforeTheEnd) {
    EXPECT_EQ(reason_if_time_is_up(1000, 20, 900), "");
    EXPECT_EQ(reason_if_time_is_up(1000, 20, 979.9), "");
    EXPECT_EQ(reason_if_time_is_up(1000, 20, 980), "the time is up in 20 s");
    EXPECT_EQ(reason_if_time_is_up(1000, 20, 997), "the time is up in 3 s");
}

TEST(TimeLimit, ThatHasPassedIsSaidToBePast) {
    EXPECT_EQ(reason_if_time_is_up(1000, 20, 1001), "the time was up 1 s ago");
    EXPECT_EQ(reason_if_time_is_up(1, 5, 1'796'060'582), "the time was up 1796060581 s ago");
}

}  // namespace
}  // namespace holdfast::train
