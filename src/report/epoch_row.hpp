// SPDX-License-Identifier: Apache-2.0
// What is known of a finished epoch: a row of the run's history, which lives in the checkpoint, and of
// metrics.csv.
#pragma once

#include <cstdint>

namespace holdfast::report {

struct EpochRow {
    std::int64_t epoch = 0;
    std::int64_t step = 0;  ///< steps done since the start of the run
    double lr = 0;          ///< rate of this epoch's steps
    double loss = 0;        ///< sample-weighted mean over the epoch
    std::int64_t train_count = 0;
    std::int64_t train_correct = 0;
    double test_loss = 0;  ///< mean over the test set
    std::int64_t test_count = 0;
    std::int64_t test_correct = 0;

    double train_accuracy() const {
        return train_count > 0 ? static_cast<double>(train_correct) / static_cast<double>(train_count) : 0;
    }
    double test_accuracy() const {
        return test_count > 0 ? static_cast<double>(test_correct) / static_cast<double>(test_count) : 0;
    }
};

}  // namespace holdfast::report
