// SPDX-License-Identifier: Apache-2.0
// The lines for people: one per epoch, up to "Acc" in the format of the tutorial this project follows, so
// that its logs can be compared with ours by eye or script. Numbers for programs go into metrics.csv and
// metrics.jsonl.
#pragma once

#include <cstdint>
#include <string>

namespace holdfast::report {

struct EpochSummary {
    std::string device = "CPU0";  ///< "GPU0", "CPU0": kind and index of rank 0's device
    std::int64_t epoch = 0;
    std::int64_t batch_size = 0;  ///< per replica
    std::int64_t num_steps = 0;   ///< of the whole epoch
    double learning_rate = 0;     ///< after the epoch's scheduler step, as in the tutorial
    double loss = 0;              ///< mean over the epoch's samples
    double accuracy = 0;          ///< in [0, 1]
    double time_s = 0;            ///< of this launch's part of the epoch
    double images_per_s = 0;      ///< in that time, all ranks
    double data_wait = 0;         ///< share of that time, in [0, 1]
};

/// "[GPU0] Epoch  0 | Batchsize: 128 | Steps: 196 | LR: 0.1000 | Loss: 2.2538 | Acc: 20.95% | Time: 61.2 s |
/// 817 images/s | Data wait: 0.1%"
std::string epoch_line(EpochSummary const& summary);

/// "[GPU0] Test Acc: 73.0500%"; `accuracy` in [0, 1].
std::string test_line(std::string const& device, double accuracy);

/// "[GPU0] Resuming training from snapshot at Epoch 6", inside an epoch with " step 17 of 196" after it.
std::string resume_line(std::string const& device, std::int64_t epoch, std::int64_t step_in_epoch,
                        std::int64_t num_steps);

}  // namespace holdfast::report
