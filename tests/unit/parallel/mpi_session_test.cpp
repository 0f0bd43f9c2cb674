// SPDX-License-Identifier: Apache-2.0
#include "parallel/mpi_session.hpp"

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

}  // namespace
}  // namespace holdfast::parallel
