// SPDX-License-Identifier: Apache-2.0
#include "parallel/mpi_session.hpp"

#include <cstdlib>
#include <exception>
#include <sstream>
#include <unistd.h>

#include <mpi.h>

#include "core/child_process.hpp"
#include "core/error.hpp"
#include "core/stop_request.hpp"
#include "parallel/mpi_check.hpp"

namespace holdfast::parallel {
namespace {

bool is_running() {
    int initialized = 0;
    int finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized != 0 && finalized == 0;
}

}  // namespace

MpiSession::MpiSession(int& argc, char**& argv) {
    int provided = 0;
    mpi_check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    // With MPI's default handler the program dies before any return code can be looked at.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    install_stop_handlers();
    require(provided >= MPI_THREAD_FUNNELED, ExitCode::do_not_requeue,
            "this MPI offers thread level {} (Holdfast's data loader and replicas run in threads and need at "
            "least "
            "MPI_THREAD_FUNNELED, {}); use an MPI library built with thread support",
            provided, static_cast<int>(MPI_THREAD_FUNNELED));
    int size = 0;
    mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    require_one_launch(size, std::getenv("OMPI_COMM_WORLD_SIZE"), std::getenv("SLURM_STEP_NUM_TASKS"));
}

MpiSession::~MpiSession() {
    if (std::uncaught_exceptions() == 0 && is_running()) MPI_Finalize();
}

void MpiSession::abort(int code) noexcept {
    if (is_running()) MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

void require_one_launch(int mpi_size, char const* ompi_world_size, char const* slurm_step_num_tasks) {
    if (mpi_size != 1 || ompi_world_size != nullptr || slurm_step_num_tasks == nullptr) return;
    require(std::atoi(slurm_step_num_tasks) <= 1, ExitCode::do_not_requeue,
            "srun started {} processes that do not know of each other (each would train alone and claim the "
            "same run "
            "directory); try srun --mpi=pmix, or start the ranks with mpirun",
            slurm_step_num_tasks);
}

std::string why_mpi_cannot_start(std::chrono::seconds time_limit) {
    ChildEnd const ended = run_child(
        [] {
            if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) return 1;
            MPI_Finalize();
            return 0;
        },
        time_limit);
    if (!ended.has_ended) return fmt::format("MPI_Init has not returned within {} s", time_limit.count());
    if (ended.code == 0) return "";
    std::string const complaint = first_complaint(ended.output);
    return complaint.empty() ? fmt::format("MPI_Init ends the process with code {}", ended.code) : complaint;
}

std::string first_complaint(std::string const& output) {
    std::istringstream lines(output);
    std::string sentence;
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("[") || line.starts_with("---")) continue;
        if (line.empty() && !sentence.empty()) break;
        sentence += (sentence.empty() || line.empty() ? "" : " ") + line;
        if (std::size_t const end = sentence.find(". "); end != std::string::npos)
            return sentence.substr(0, end);
        if (sentence.ends_with('.')) return sentence.substr(0, sentence.size() - 1);
    }
    return sentence;
}

}  // namespace holdfast::parallel
