// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor/storage_checks.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace holdfast::commands::doctor {
namespace {

constexpr double slow_sync_s =
    1;  // a save syncs four times and a step waits for none of them, but the end of a job does

std::string size_text(std::uint64_t bytes) {
    double const mb = static_cast<double>(bytes) / 1e6;
    return mb < 10000 ? fmt::format("{:.1f} MB", mb) : fmt::format("{:.0f} GB", mb / 1e3);
}

}  // namespace

Finding judge_run_directory(std::string const& run, std::string const& folder, std::string const& failure) {
    constexpr char const* check = "run-directory";
    if (!failure.empty())
        return {check, State::error, fmt::format("{} cannot be written: {}", folder, failure),
                fmt::format("the run directory {} must hold checkpoints; training ends before its first step",
                            run),
                "--run <a folder of yours on a disk with space that all hosts see>"};
    return {check, State::ok, fmt::format("{} can be written, for the run {}", folder, run), "", ""};
}

Finding judge_shared(bool written, std::string const& folder, std::vector<std::string> const& failure_of_rank,
                     std::vector<std::string> const& host_of_rank) {
    constexpr char const* check = "shared";
    if (!written)
        return {check, State::unknown, "not known", "rank 0 could write nothing that others could look for",
                ""};
    std::string seen;
    for (std::size_t rank = 0; rank < failure_of_rank.size(); ++rank)
        if (!failure_of_rank[rank].empty())
            seen += fmt::format("{}rank {} ({}) does not see what rank 0 ({}) wrote in {}: {}",
                                seen.empty() ? "" : "\n", rank, host_of_rank[rank], host_of_rank.front(),
                                folder, failure_of_rank[rank]);
    if (!seen.empty())
        return {check, State::error, seen,
                "a launch that begins on another host would find no checkpoint there and start anew",
                "--run <an absolute path on a file system that all hosts mount>"};
    return {check, State::ok,
            fmt::format("what rank 0 writes in {} is seen by all {} ranks", folder, failure_of_rank.size()),
            "", ""};
}

Finding judge_sync(Known<SyncTimes> const& times, std::uint64_t checkpoint_bytes) {
    constexpr char const* check = "fsync";
    if (!times.is_known()) return {check, State::unknown, "not known", times.unknown, ""};
    double const save_s = static_cast<double>(checkpoint_bytes) / 1e6 / std::max(times.value.mb_per_s, 1e-3);
    std::string const seen = fmt::format("{:.1f} ms a block, {:.0f} MB/s: about {:.1f} s a checkpoint",
                                         times.value.small_s * 1e3, times.value.mb_per_s, save_s);
    if (times.value.small_s >= slow_sync_s)
        return {
            check, State::warning, seen, "the last save must be on the disk before the job's time is up",
            "--run <a folder on a faster file system>, or sbatch --signal=B:USR1@600 to be warned earlier"};
    return {check, State::ok, seen, "", ""};
}

Finding judge_space(Known<Space> const& space, std::string const& folder, std::uint64_t checkpoint_bytes,
                    std::int64_t num_checkpoints, int keep) {
    constexpr char const* check = "space";
    constexpr char const* lost = "a checkpoint that cannot be written is lost work when the launch ends";
    if (!space.is_known()) return {check, State::unknown, "not known", space.unknown, ""};
    if (space.value.total_files > 0 && space.value.free_files == 0)
        return {check, State::error,
                fmt::format("{} has no room for another file (inodes are used up)", folder), lost,
                "delete files there, or --run <a folder on another file system>"};
    std::int64_t const missing = std::max<std::int64_t>(1, keep + 1 - num_checkpoints);
    std::uint64_t const needed = static_cast<std::uint64_t>(missing) * checkpoint_bytes;
    std::string const seen =
        fmt::format("{} has {} free; {} more checkpoints of {} are to come", folder,
                    size_text(space.value.free_bytes), missing, size_text(checkpoint_bytes));
    if (space.value.free_bytes < needed)
        return {check, space.value.free_bytes < checkpoint_bytes ? State::error : State::warning, seen, lost,
                keep > 2 ? "free some space, --keep 2, or --run <a folder on another file system>"
                         : "free some space, or --run <a folder on another file system>"};
    return {check, State::ok, seen, "", ""};
}

}  // namespace holdfast::commands::doctor
