// SPDX-License-Identifier: Apache-2.0
#include "train/time_limit.hpp"

#include <fmt/format.h>

namespace holdfast::train {

double stop_lead_s(double longest_step_s, double longest_save_s) {
    return 2 * (longest_step_s + longest_save_s) + 5;
}

std::string reason_if_time_is_up(double end_time_s, double lead_s, double now_s) {
    double const left_s = end_time_s - now_s;
    if (left_s > lead_s) return "";
    if (left_s < 0) return fmt::format("the time was up {:.0f} s ago", -left_s);
    return fmt::format("the time is up in {:.0f} s", left_s);
}

}  // namespace holdfast::train
