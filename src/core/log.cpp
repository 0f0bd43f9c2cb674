// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"

#include <cstdio>
#include <unistd.h>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

namespace holdfast::log {
namespace {

struct Speaker {
    int rank = 0;
    int num_ranks = 1;
    std::string prefix;  ///< "[rank 1, node17] " once there are several ranks
    std::shared_ptr<spdlog::logger> file;
};

Speaker& speaker() {
    static Speaker instance;
    return instance;
}

/// One write(2) per line: lines of several ranks do not interleave, and nothing is buffered when a rank is killed.
void print(int descriptor, std::string_view tag, std::string_view message) {
    std::string const line = fmt::format("{}{}\n", tag, message);
    std::size_t done = 0;
    while (done < line.size()) {
        ssize_t const written = ::write(descriptor, line.data() + done, line.size() - done);
        if (written <= 0) return;  // a closed terminal must not end a run
        done += static_cast<std::size_t>(written);
    }
}

}  // namespace

void set_rank(int rank, int num_ranks, std::string const& host) {
    speaker().rank = rank;
    speaker().num_ranks = num_ranks;
    speaker().prefix = num_ranks > 1 ? fmt::format("[rank {}, {}] ", rank, host) : std::string();
}

int rank() { return speaker().rank; }
int num_ranks() { return speaker().num_ranks; }

void open_file(std::string const& path) {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    auto file = std::make_shared<spdlog::logger>("file", sink);
    file->set_pattern("%Y-%m-%dT%H:%M:%S%z %L %v");
    file->flush_on(spdlog::level::trace);
    speaker().file = std::move(file);
}

void write_info(std::string_view message) {
    if (speaker().rank != 0) return;
    print(STDOUT_FILENO, "", message);
    if (speaker().file) speaker().file->info("{}", message);
}

void write_warning(std::string_view message) {
    if (speaker().rank != 0) return;
    print(STDERR_FILENO, "warning: ", message);
    if (speaker().file) speaker().file->warn("{}", message);
}

void write_error(std::string_view message) {
    print(STDERR_FILENO, speaker().prefix + "error: ", message);
    if (speaker().file) speaker().file->error("{}", message);
}

void write_error_to_terminal(std::string_view message) {
    print(STDERR_FILENO, speaker().prefix + "error: ", message);
}

void write_agreed_error(std::string_view message) {
    if (speaker().rank != 0) return;
    print(STDERR_FILENO, "error: ", message);
    if (speaker().file) speaker().file->error("{}", message);
}

void write_last_line(int exit_code, std::string_view message) {
    if (speaker().rank != 0) return;
    print(STDERR_FILENO, fmt::format("Ended with exit code {}: ", exit_code), message);
}

}  // namespace holdfast::log
