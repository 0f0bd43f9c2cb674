// SPDX-License-Identifier: Apache-2.0
#include "report/epoch_line.hpp"

#include <fmt/core.h>

namespace holdfast::report {

std::string epoch_line(EpochSummary const& summary) {
    return fmt::format(
        "[{}] Epoch {:2} | Batchsize: {} | Steps: {} | LR: {:.4f} | Loss: {:.4f} | Acc: {:.2f}% | Time: "
        "{:.1f} s | "
        "{:.0f} images/s | Data wait: {:.1f}%",
        summary.device, summary.epoch, summary.batch_size, summary.num_steps, summary.learning_rate,
        summary.loss, 100 * summary.accuracy, summary.time_s, summary.images_per_s, 100 * summary.data_wait);
}

std::string test_line(std::string const& device, double accuracy) {
    return fmt::format("[{}] Test Acc: {:.4f}%", device, 100 * accuracy);
}

std::string resume_line(std::string const& device, std::int64_t epoch, std::int64_t step_in_epoch,
                        std::int64_t num_steps) {
    std::string line = fmt::format("[{}] Resuming training from snapshot at Epoch {}", device, epoch);
    if (step_in_epoch > 0) line += fmt::format(" step {} of {}", step_in_epoch, num_steps);
    return line;
}

}  // namespace holdfast::report
