// SPDX-License-Identifier: Apache-2.0
#include "report/start_times.hpp"

#include <ctime>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/process_stat.hpp"

namespace holdfast::report {

double seconds_since_exec() {
    std::string const started_at = process_stat("self").at(stat_start_time);
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    double const ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
           std::stod(started_at) / ticks_per_second;
}

StartTimes::StartTimes() : last_s_(seconds_since_exec()) { parts_.emplace_back("loading", last_s_); }

void StartTimes::part_done(std::string name) {
    double const now_s = seconds_since_exec();
    parts_.emplace_back(std::move(name), now_s - last_s_);
    last_s_ = now_s;
}

nlohmann::ordered_json StartTimes::json() const {
    nlohmann::ordered_json json;
    for (auto const& [name, seconds] : parts_) json[name + "_s"] = seconds;
    json["total_s"] = last_s_;
    return json;
}

std::string StartTimes::text() const {
    std::string parts;
    for (auto const& [name, seconds] : parts_)
        parts += fmt::format("{}{} {:.2f}", parts.empty() ? "" : ", ", name, seconds);
    return fmt::format("{:.2f} s ({})", last_s_, parts);
}

}  // namespace holdfast::report
