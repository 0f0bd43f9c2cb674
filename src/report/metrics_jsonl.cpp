// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_jsonl.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/json_text.hpp"
#include "core/log.hpp"

namespace holdfast::report {

MetricsLog::MetricsLog(std::filesystem::path const& path, std::int64_t launch)
    : path_(path.string()), launch_(launch) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) {
        warn_once(errno);
        return;
    }
    char last = '\n';
    off_t const size = ::lseek(fd_, 0, SEEK_END);
    if (size > 0 && ::pread(fd_, &last, 1, size - 1) == 1 && last != '\n' && ::write(fd_, "\n", 1) != 1)
        warn_once(errno);
}

MetricsLog::~MetricsLog() {
    if (fd_ >= 0) ::close(fd_);
}

void MetricsLog::append(std::int64_t step, std::string const& event, nlohmann::ordered_json const& fields) {
    if (fd_ < 0) return;
    nlohmann::ordered_json row{{"launch", launch_}, {"step", step}, {"event", event}};
    row.update(fields);
    // Text that is not UTF-8 (a path, say) must not throw here.
    std::string const line = json_text(row, -1) + "\n";
    ssize_t const written = ::write(fd_, line.data(), line.size());
    if (written == static_cast<ssize_t>(line.size())) return;
    warn_once(written < 0 ? errno : ENOSPC);
    // A row cut short by a full disk would swallow the next one.
    if (written > 0 && ::write(fd_, "\n", 1) != 1) warn_once(errno);
}

void MetricsLog::warn_once(int error) {
    if (warned_) return;
    warned_ = true;
    log::warning("cannot write {}: {} (training goes on, this log will have gaps)", path_,
                 std::strerror(error));
}

}  // namespace holdfast::report
