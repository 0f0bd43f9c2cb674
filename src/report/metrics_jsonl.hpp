// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: a log of what happened and how long it took, one JSON object a line. It is appended to by
// every launch and never cut; of several rows for one step the last counts. A log that cannot be written
// never stops a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace holdfast::report {

class MetricsLog {
  public:
    /// Opens for appending, completing a line that a killed launch left half written. Warns if that fails.
    MetricsLog(std::filesystem::path const& path, std::int64_t launch);
    ~MetricsLog();
    MetricsLog(MetricsLog const&) = delete;
    MetricsLog& operator=(MetricsLog const&) = delete;

    /// Appends {"launch": ..., "step": ..., "event": ..., and the members of the object `fields`} in one
    /// write. Numbers that are not finite become null. Warns the first time it fails.
    void append(std::int64_t step, std::string const& event, nlohmann::ordered_json const& fields);

  private:
    void warn_once(int error);

    std::string path_;
    std::int64_t launch_;
    int fd_ = -1;
    bool warned_ = false;
};

}  // namespace holdfast::report
