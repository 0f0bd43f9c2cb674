// SPDX-License-Identifier: Apache-2.0
// What holdfast doctor thinks of the disk of the run directory: whether it can be written, whether all ranks see it, how long it takes
// until something is safe there, and for how many checkpoints there is room. Pure functions of what was found (storage_facts.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "commands/doctor/finding.hpp"

namespace holdfast::commands::doctor {

struct Space {
    std::uint64_t free_bytes = 0;
    std::uint64_t total_files = 0;  ///< 0: the file system does not count them
    std::uint64_t free_files = 0;
};

struct Checkpoints {
    std::int64_t count = 0;             ///< that are in the run directory
    std::uint64_t size_bytes_each = 0;  ///< of the newest, 0 if there is none
};

/// How fast the disk keeps what it is given.
struct SyncTimes {
    double small_s = 0;   ///< median of writing a block and fsync
    double mb_per_s = 0;  ///< of a few MB and fsync
};

/// `folder`: that of the run, or the nearest above it that exists. `failure`: why rank 0 could not write a file there.
Finding judge_run_directory(std::string const& run, std::string const& folder, std::string const& failure);

/// `failure_of_rank`: why a rank does not see rank 0's file, empty if it does. `written`: rank 0 could write one.
Finding judge_shared(bool written, std::string const& folder, std::vector<std::string> const& failure_of_rank,
                     std::vector<std::string> const& host_of_rank);

Finding judge_sync(Known<SyncTimes> const& times, std::uint64_t checkpoint_bytes);

/// Room for `keep` checkpoints of this size, one more while it is being written, less those that are there.
Finding judge_space(Known<Space> const& space, std::string const& folder, std::uint64_t checkpoint_bytes,
                    std::int64_t num_checkpoints, int keep);

}  // namespace holdfast::commands::doctor
