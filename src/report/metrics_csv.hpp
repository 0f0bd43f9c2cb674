// SPDX-License-Identifier: Apache-2.0
// metrics.csv: the history of a run, one row an epoch, with nothing in it that depends on time or machine. It
// is written anew from the history in the checkpoint each time, so an interrupted run and an uninterrupted
// one end with the same bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace holdfast::report {

struct TestResult {
    double loss = 0;  ///< mean over the test samples
    std::int64_t count = 0;
    std::int64_t correct = 0;
};

struct EpochRow {
    std::int64_t epoch = 0;
    std::int64_t step = 0;     ///< global, at the end of the epoch
    double learning_rate = 0;  ///< after the epoch's scheduler step
    double loss = 0;           ///< mean over the epoch's samples
    std::int64_t train_count = 0;
    std::int64_t train_correct = 0;
    std::optional<TestResult> test;  ///< empty cells where the epoch was not evaluated
};

/// Header and rows, comma separated, each line ended by a line feed; numbers in the shortest form that reads
/// back to the same double.
std::string metrics_csv(std::span<EpochRow const> rows);

}  // namespace holdfast::report
