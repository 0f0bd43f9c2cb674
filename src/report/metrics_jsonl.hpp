// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: a log of times, losses and saves, one JSON object per line. Never cut; after an interruption steps may appear
// twice, and the last row of a step counts. Each row has kind, launch and step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "report/epoch_row.hpp"

namespace holdfast::report {

struct StepRow {
    std::int64_t epoch = 0;
    std::int64_t step = 0;  ///< number of the step, from 0
    double lr = 0;
    float loss = 0;
    std::int64_t samples = 0;
    std::int64_t correct = 0;
    double step_s = 0;
    double data_wait_s = 0;
    double compute_s = 0;
    double exchange_s = 0;
};

struct SaveRow {
    std::int64_t step = 0;  ///< steps done
    double blocked_s = 0;   ///< time training stood still
    double durable_s = 0;   ///< time until the file was on the disk
    std::int64_t size_bytes = 0;
};

class MetricsJsonl {
  public:
    /// Appends to `path`. Throws Error(retry) if it cannot be opened.
    MetricsJsonl(std::filesystem::path const& path, std::int64_t launch);
    void write(StepRow const& row);    ///< {"kind":"step",...}; loss with round-trip precision
    void write(EpochRow const& row);   ///< {"kind":"epoch",...}
    void write(SaveRow const& row);    ///< {"kind":"save",...}

  private:
    std::int64_t launch_;
    std::ofstream file_;
};

}  // namespace holdfast::report
