// SPDX-License-Identifier: Apache-2.0
// What holdfast doctor thinks of the hosts and of what is installed on them: the same everywhere, one of each library, enough shared
// memory, clocks that agree, a job that may be requeued. Pure functions of what was found (host_facts.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "commands/doctor/finding.hpp"

namespace holdfast::commands::doctor {

/// What all ranks should have in common. `difference`: parallel::first_difference of it, empty if there is none. `fix` if they differ.
Finding judge_sameness(char const* check, char const* what, std::string const& difference, char const* fix);

/// `failure_of_rank`: why a rank's thread does not get the threads that a replica computes with; empty if it does.
Finding judge_threads(int threads, std::vector<std::string> const& failure_of_rank);

/// The memory that the ranks of one host share.
struct SharedMemory {
    std::string host;
    int num_ranks = 1;
    std::string folder;               ///< where MPI keeps its own
    Known<std::uint64_t> free_bytes;  ///< there
    bool needs_folder = false;        ///< the ranks cannot open each other's /proc/PID/fd
    std::uint64_t needed_bytes = 0;   ///< of the state and gradients, if they must lie in the folder
    bool uses_gpus = false;
};
Finding judge_shared_memory(std::vector<SharedMemory> const& hosts);

/// `offset_s`: how far each rank's clock is ahead of rank 0's.
Finding judge_clock(std::vector<double> const& offset_s, std::vector<std::string> const& host_of_rank);

/// `job`: SLURM_JOB_ID, empty outside. `description`: what 'scontrol show job' says of it.
Finding judge_requeue(std::string const& job, Known<std::string> const& description);

struct Nccl {
    std::string built = "none";  ///< with
    Known<std::string> loaded;   ///< version
    std::vector<std::string> loaded_files;
    std::vector<std::string> other_files;  ///< found by LD_LIBRARY_PATH
};
Finding judge_nccl(Nccl const& nccl);

struct LibTorch {
    std::string built;          ///< version
    std::string loaded;         ///< version, or "unknown"
    Known<std::string> folder;  ///< of the libtorch_cpu.so in use
    std::string built_folder;   ///< of the one that the program was linked with
    bool needs_cuda = false;    ///< this program uses GPUs
    bool has_cuda = false;      ///< libtorch_cuda.so is in the folder
};
Finding judge_libtorch(LibTorch const& libtorch);

/// `summary` of all versions.
Finding judge_versions(std::string const& summary);

/// `failure_of_rank`: why a rank cannot read the data. `description`: of rank 0's, empty if --data was not given.
Finding judge_data(std::string const& data, std::string const& description,
                   std::vector<std::string> const& failure_of_rank,
                   std::vector<std::string> const& host_of_rank, std::string const& difference);

}  // namespace holdfast::commands::doctor
