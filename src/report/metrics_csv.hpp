// SPDX-License-Identifier: Apache-2.0
// metrics.csv: only what is deterministic, so that the file is byte for byte the same for any number of ranks and interruptions.
// Rewritten as a whole from the history in the checkpoint.
#pragma once

#include <span>
#include <string>

#include "report/epoch_row.hpp"

namespace holdfast::report {

/// Header and one line per row; numbers in their shortest exact form.
std::string metrics_csv(std::span<EpochRow const> history);

}  // namespace holdfast::report
