// SPDX-License-Identifier: Apache-2.0
// What holdfast doctor thinks of a launch: who started the ranks, where they are, which GPU each one gets, and which cores.
// Pure functions of what was found (launch_facts.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commands/doctor/finding.hpp"
#include "commands/launch_device.hpp"
#include "parallel/launch_table.hpp"

namespace holdfast::commands::doctor {

/// What a process knows of who started it. Numbers are those of the environment, where it has them.
struct Launcher {
    int mpi_size = 1;              ///< 1 where MPI was not started
    std::string mpi_failure;       ///< why MPI cannot start; empty if it can
    std::optional<int> ompi_size;  ///< OMPI_COMM_WORLD_SIZE: started by Open MPI's mpirun
    std::optional<int> pmi_size;   ///< PMI_SIZE: by that of MPICH and its relatives, or by srun with PMI-2
    std::optional<int> pmix_rank;  ///< PMIX_RANK: by anybody who speaks PMIx
    std::optional<int> slurm_step_tasks;  ///< SLURM_STEP_NUM_TASKS
    std::optional<int> slurm_tasks;       ///< SLURM_NTASKS: of the job, also in its batch shell
    std::optional<int> slurm_process;     ///< SLURM_PROCID: 0 in the batch shell
    std::optional<int> slurm_nodes;       ///< SLURM_JOB_NUM_NODES
    std::optional<int> gpus_per_task;     ///< SLURM_GPUS_PER_TASK
    bool in_slurm_step = false;           ///< SLURM_STEP_ID or SLURM_STEPID

    /// Whether somebody started this process as a rank of a launch, as far as the environment tells.
    bool has_launcher() const { return ompi_size || pmi_size || pmix_rank; }
    /// Whether it is one of several processes of a launcher that know nothing of each other.
    bool is_singleton_of_many() const;
};

Finding judge_launcher(Launcher const& launcher);
/// `replicas`: of --replicas, 0 if it is not given.
Finding judge_ranks(parallel::LaunchTable const& table, Launcher const& launcher, std::int64_t replicas);

/// `wanted` is the value of --device. `has_cuda`: this program can use GPUs.
Finding judge_devices(std::vector<RankView> const& views, std::string const& wanted, bool has_cuda);
/// Whether SLURM gives each rank one GPU only, and which.
Finding judge_gpus_per_task(std::vector<RankView> const& views, std::string const& wanted,
                            Launcher const& launcher);

/// The cores of each rank, and for how many threads. `threads` per replica.
Finding judge_binding(parallel::LaunchTable const& table, int threads);
/// Threads of the ranks of a host against its cores. `cpu_quota`: cores that the container may use at a time, 0 if no limit, by rank.
Finding judge_oversubscription(parallel::LaunchTable const& table, int threads,
                               std::vector<double> const& cpu_quota);

}  // namespace holdfast::commands::doctor
