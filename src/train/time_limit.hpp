// SPDX-License-Identifier: Apache-2.0
// When a launch that may only run until some time has to stop, so that its last checkpoint is on the disk before. Pure
// functions of what they are told; times are seconds since 1970.
#pragma once

#include <string>

namespace holdfast::train {

/// How long before the end a launch stops: what has to fit is the step under way, a save that waits for the one before it, and
/// leaving, for which there are 5 s. Given are the longest of this launch so far, in seconds.
double stop_lead_s(double longest_step_s, double longest_save_s);

/// Why to stop now, in words; empty while there is time.
std::string reason_if_time_is_up(double end_time_s, double lead_s, double now_s);

}  // namespace holdfast::train
