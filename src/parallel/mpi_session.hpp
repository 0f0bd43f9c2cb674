// SPDX-License-Identifier: Apache-2.0
// MPI from init to finalize. Only the main thread calls MPI. While an exception unwinds, nothing is
// finalized: finalizing waits for the other ranks, and those wait in a collective that this rank has left.
// main's catch calls abort instead.
#pragma once

#include <chrono>
#include <string>

namespace holdfast::parallel {

class MpiSession {
  public:
    /// Collective over the launch. Errors of MPI come back as codes from here on (mpi_check); the stop
    /// handlers are installed again, since MPI may have replaced them. Throws Error(do_not_requeue) if this
    /// is one of many processes that a launcher without MPI support started as launches of one rank each.
    MpiSession(int& argc, char**& argv);
    ~MpiSession();
    MpiSession(MpiSession const&) = delete;
    MpiSession& operator=(MpiSession const&) = delete;

    /// Ends all ranks of the launch with this code; where MPI is not running, only this process.
    [[noreturn]] static void abort(int code) noexcept;
};

/// The check of the constructor, on its inputs. The last two are environment values, null if unset:
/// OMPI_COMM_WORLD_SIZE, SLURM_STEP_NUM_TASKS. (SLURM_NTASKS proves nothing: it is also set in the batch
/// shell, where mpirun is started.)
void require_one_launch(int mpi_size, char const* ompi_world_size, char const* slurm_step_num_tasks);

/// Starts MPI in a child process and says why that fails, in MPI's own words; empty if it does not. Where MPI cannot start, MPI_Init
/// ends the process rather than return. Only for a process without a launcher: the child would take its place in the launch.
std::string why_mpi_cannot_start(std::chrono::seconds time_limit);

/// The first sentence of what MPI printed, without its frames and the lines that begin with a host and a process number.
std::string first_complaint(std::string const& output);

}  // namespace holdfast::parallel
