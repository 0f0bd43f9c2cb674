// SPDX-License-Identifier: Apache-2.0
// What the kernel tells of a process in /proc/PID/stat: proc(5).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace holdfast {

/// Places in process_stat's answer; proc(5) counts from 1, and the state is its field 3.
inline constexpr std::size_t stat_state = 0, stat_session = 3, stat_start_time = 19;

/// The fields behind the program's name, which may contain blanks and brackets. Either empty, where there is no such process, or
/// long enough for the places above. `pid` may be "self".
std::vector<std::string> process_stat(std::string const& pid);

}  // namespace holdfast
