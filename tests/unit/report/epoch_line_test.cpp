// SPDX-License-Identifier: Apache-2.0
#include "report/epoch_line.hpp"

#include <gtest/gtest.h>

namespace holdfast::report {
namespace {

TEST(EpochLine, BeginsAsTheTutorials) {
    EpochSummary const summary{"GPU0", 0, 128, 196, 0.1, 2.25384, 0.20951, 61.24, 816.7, 0.0012};
    EXPECT_EQ(epoch_line(summary),
              "[GPU0] Epoch  0 | Batchsize: 128 | Steps: 196 | LR: 0.1000 | Loss: 2.2538 | Acc: 20.95% | "
              "Time: 61.2 s | "
              "817 images/s | Data wait: 0.1%");
}

TEST(EpochLine, KeepsItsFormForLargeAndSmallNumbers) {
    EpochSummary const summary{"CPU0", 14, 16, 3125, 0.0001, 0.03, 1.0, 1234.5, 40.4, 0.5};
    EXPECT_EQ(epoch_line(summary),
              "[CPU0] Epoch 14 | Batchsize: 16 | Steps: 3125 | LR: 0.0001 | Loss: 0.0300 | Acc: 100.00% | "
              "Time: 1234.5 s | "
              "40 images/s | Data wait: 50.0%");
}

TEST(TestLine, IsTheTutorials) { EXPECT_EQ(test_line("GPU0", 0.7305), "[GPU0] Test Acc: 73.0500%"); }

TEST(ResumeLine, IsTheTutorialsAndNamesTheStepInsideAnEpoch) {
    EXPECT_EQ(resume_line("GPU0", 6, 0, 196), "[GPU0] Resuming training from snapshot at Epoch 6");
    EXPECT_EQ(resume_line("CPU0", 6, 17, 196),
              "[CPU0] Resuming training from snapshot at Epoch 6 step 17 of 196");
}

}  // namespace
}  // namespace holdfast::report
