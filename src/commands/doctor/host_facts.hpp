// SPDX-License-Identifier: Apache-2.0
// The libraries, job and memory of this process. Each may throw; those that touch a disk or start a program may take long.
#pragma once

#include <string>
#include <vector>

#include "commands/doctor/host_checks.hpp"
#include "parallel/communicator.hpp"

namespace holdfast::commands::doctor {

/// The files whose names begin with `name` among the mappings of a process, given as /proc/PID/maps lists them, each once.
std::vector<std::string> mapped_files(std::string const& maps, std::string const& name);

/// Loads NCCL, if the program can use it.
Nccl find_nccl();
LibTorch find_libtorch(bool needs_cuda);

/// Names the folder by MPI's own settings.
Known<std::uint64_t> free_bytes_of(std::string const& folder);

/// SLURM_JOB_ID, or empty.
std::string slurm_job();
/// What scontrol says of it. Throws Error if that cannot be had within some seconds.
std::string describe_job(std::string const& job);

/// All HOLDFAST_ variables with their values, sorted, one a line.
std::string own_environment();

/// Collective. How far the clock of each rank is ahead of rank 0's, in seconds.
std::vector<double> collective_clock_offsets(parallel::Communicator const& world);

}  // namespace holdfast::commands::doctor
