// SPDX-License-Identifier: Apache-2.0
// Where the time between the start of the process and the first step goes. A launch that is restarted often lives by it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace holdfast::report {

/// Age of this process, so that loading the program and its libraries counts (proc(5), field starttime; in steps of 10 ms).
double seconds_since_exec();

class StartTimes {
  public:
    /// The first part, loading the program, ends here.
    StartTimes();
    /// A part of the start ends here; it lasted since the part before it.
    void part_done(std::string name);
    /// {"loading_s": 0.21, ...} and their sum, "total_s".
    nlohmann::ordered_json json() const;
    /// "1.32 s (loading 0.21, ...)".
    std::string text() const;

  private:
    double last_s_;
    std::vector<std::pair<std::string, double>> parts_;
};

}  // namespace holdfast::report
