// SPDX-License-Identifier: Apache-2.0
#include "parallel/mpi_session.hpp"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"

namespace holdfast::parallel {
namespace {

TEST(RequireOneLaunch, RefusesSilentSingletons) {
    try {
        require_one_launch(1, nullptr, "4");
        FAIL() << "accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
        EXPECT_THAT(error.what(), testing::HasSubstr("--mpi=pmix"));
    }
}

TEST(RequireOneLaunch, AcceptsEveryRealLaunch) {
    EXPECT_NO_THROW(require_one_launch(1, nullptr, nullptr));  // started by hand
    EXPECT_NO_THROW(require_one_launch(1, nullptr, "1"));      // srun -n 1
    EXPECT_NO_THROW(require_one_launch(4, nullptr, "4"));      // srun --mpi=pmix
    EXPECT_NO_THROW(require_one_launch(1, "1", "4"));          // mpirun -np 1 inside a step
    EXPECT_NO_THROW(require_one_launch(1, nullptr, "nonsense"));
}

TEST(FirstComplaint, IsTheFirstSentenceOfOpenMpi) {
    EXPECT_EQ(
        first_complaint("[vm:7927] OPAL ERROR: Unreachable in file ext3x_client.c at line 112\n"
                        "--------------------\n"
                        "The application appears to have been direct launched using \"srun\",\n"
                        "but OMPI was not built with SLURM's PMI support and therefore cannot\n"
                        "execute. There are several options\n"),
        "The application appears to have been direct launched using \"srun\", but OMPI was not built with "
        "SLURM's PMI support and therefore cannot execute");
    EXPECT_EQ(first_complaint("---\n\nA failure\n\nand more"), "A failure");
    EXPECT_EQ(first_complaint("[a]\n"), "");
    EXPECT_EQ(first_complaint(""), "");
}

TEST(WhyMpiCannotStart, TriesItInAChild) {
    EXPECT_EQ(why_mpi_cannot_start(std::chrono::seconds(60)), "");
    setenv("OMPI_MCA_btl", "no_such_transport", 1);
    EXPECT_NE(why_mpi_cannot_start(std::chrono::seconds(60)), "");
    unsetenv("OMPI_MCA_btl");
    EXPECT_EQ(why_mpi_cannot_start(std::chrono::seconds(0)), "MPI_Init has not returned within 0 s");
}

}  // namespace
}  // namespace holdfast::parallel
