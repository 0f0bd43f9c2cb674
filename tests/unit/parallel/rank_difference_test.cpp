// SPDX-License-Identifier: Apache-2.0
#include "parallel/rank_difference.hpp"

#include <gtest/gtest.h>

namespace holdfast::parallel {
namespace {

using Texts = std::vector<std::string>;

TEST(FirstDifference, IsEmptyWhereAllSayTheSame) {
    EXPECT_EQ(first_difference({"a\nb"}, {"h0"}), "");
    EXPECT_EQ(first_difference({"a\nb", "a\nb", "a\nb"}, {"h0", "h0", "h1"}), "");
    EXPECT_EQ(first_difference({"", ""}, {"h0", "h1"}), "");
}

TEST(FirstDifference, ShowsTheFirstLineWithBothRanksAndHosts) {
    EXPECT_EQ(first_difference({"a\nb\nc", "a\nB\nC"}, {"h0", "h1"}),
              "'b' on rank 0 (h0), 'B' on rank 1 (h1)");
}

TEST(FirstDifference, TakesTheRankThatIsAloneForTheOther) {
    Texts const hosts{"h0", "h1", "h2"};
    EXPECT_EQ(first_difference({"x", "a", "a"}, hosts), "'a' on rank 1 (h1), 'x' on rank 0 (h0)");
    EXPECT_EQ(first_difference({"a", "x", "a"}, hosts), "'a' on rank 0 (h0), 'x' on rank 1 (h1)");
    EXPECT_EQ(first_difference({"a", "a", "x"}, hosts), "'a' on rank 0 (h0), 'x' on rank 2 (h2)");
    EXPECT_EQ(first_difference({"a", "b", "c"}, hosts), "'a' on rank 0 (h0), 'b' on rank 1 (h1)");
}

TEST(FirstDifference, SeesALineThatIsMissing) {
    EXPECT_EQ(first_difference({"a", "a\nb"}, {"h0", "h1"}), "'' on rank 0 (h0), 'b' on rank 1 (h1)");
    EXPECT_EQ(first_difference({"a", "a\n"}, {"h0", "h1"}), "'' on rank 0 (h0), '' on rank 1 (h1)");
    EXPECT_EQ(first_difference({"a", ""}, {"h0", "h1"}), "'a' on rank 0 (h0), '' on rank 1 (h1)");
}

}  // namespace
}  // namespace holdfast::parallel
