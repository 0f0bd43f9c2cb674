// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_csv.hpp"

#include <iterator>

#include <fmt/format.h>

namespace holdfast::report {

std::string metrics_csv(std::span<EpochRow const> rows) {
    std::string text =
        "epoch,step,lr,loss,train_count,train_correct,test_loss,test_count,test_correct,test_accuracy\n";
    auto const out = std::back_inserter(text);
    for (EpochRow const& row : rows) {
        fmt::format_to(out, "{},{},{},{},{},{},", row.epoch, row.step, row.learning_rate, row.loss,
                       row.train_count, row.train_correct);
        if (row.test) {
            TestResult const& test = *row.test;
            fmt::format_to(out, "{},{},{},", test.loss, test.count, test.correct);
            if (test.count > 0) {
                fmt::format_to(out, "{}",
                               static_cast<double>(test.correct) / static_cast<double>(test.count));
            }
        } else {
            text += ",,,";
        }
        text += '\n';
    }
    return text;
}

}  // namespace holdfast::report
