// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_csv.hpp"

#include <cstdlib>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace holdfast::report {
namespace {

constexpr char const* header =
    "epoch,step,lr,loss,train_count,train_correct,test_loss,test_count,test_correct,test_accuracy\n";

TEST(MetricsCsv, IsTheHeaderAloneWithoutRows) { EXPECT_EQ(metrics_csv({}), header); }

TEST(MetricsCsv, HasOneLineAnEpochAndEmptyCellsWhereNothingWasTested) {
    std::vector<EpochRow> const rows{{0, 196, 0.1, 2.25, 50000, 10475, {}},
                                     {1, 392, 0.1, 1.5, 50000, 21870, TestResult{1.25, 10000, 7305}}};
    EXPECT_EQ(metrics_csv(rows), std::string(header) +
                                     "0,196,0.1,2.25,50000,10475,,,,\n"
                                     "1,392,0.1,1.5,50000,21870,1.25,10000,7305,0.7305\n");
}

TEST(MetricsCsv, NumbersReadBackToTheSameDouble) {
    double const loss = 0.1 + 0.2;
    std::string const text =
        metrics_csv(std::vector<EpochRow>{{0, 1, 1e-20, loss, 3, 1, TestResult{1.0 / 3, 3, 1}}});
    EXPECT_EQ(text, std::string(header) +
                        "0,1,1e-20,0.30000000000000004,3,1,0.3333333333333333,3,1,0.3333333333333333\n");
    EXPECT_EQ(std::strtod("0.30000000000000004", nullptr), loss);
}

TEST(MetricsCsv, SaysSoWhereALossIsNotFinite) {
    double const nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(metrics_csv(std::vector<EpochRow>{{0, 1, 0.1, nan, 3, 1, {}}}),
              std::string(header) + "0,1,0.1,nan,3,1,,,,\n");
}

}  // namespace
}  // namespace holdfast::report
