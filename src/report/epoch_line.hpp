// SPDX-License-Identifier: Apache-2.0
// The lines people read: one per epoch in the format of the tutorial this project follows, and the final test accuracy.
#pragma once

#include <cstdint>
#include <string>

#include "report/epoch_row.hpp"

namespace holdfast::report {

struct EpochTimes {
    double seconds = 0;            ///< training part of the epoch, in this launch
    std::int64_t samples = 0;      ///< trained in these seconds
    double data_wait_s = 0;
};

/// "[CPU0] Epoch  0 | Batchsize: 128 | Steps: 196 | LR: 0.1000 | Loss: 2.2538 | Acc: 20.95% | Test loss: ... | Test acc: ... |
/// Time: ... s | ... images/s | Data wait: ...%". `device` is "CPU" or "GPU"; `next_lr` is the rate after the epoch's
/// scheduler step, as in the tutorial; `batch_size` is per replica.
std::string epoch_line(std::string const& device, EpochRow const& row, std::int64_t batch_size, std::int64_t steps_per_epoch,
                       double next_lr, EpochTimes const& times);

/// "[CPU0] Test Acc: 73.0500%"
std::string test_line(std::string const& device, std::int64_t correct, std::int64_t count);

}  // namespace holdfast::report
