// SPDX-License-Identifier: Apache-2.0
// GoogleTest's main for tests that run under mpirun: rank 0 reports, the others report failures only, and one
// rank's failure is every rank's exit code.
#include <cstdio>

#include <gtest/gtest.h>
#include <mpi.h>

namespace {

class FailuresOfRank : public testing::EmptyTestEventListener {
  public:
    explicit FailuresOfRank(int rank) : rank_(rank) {}
    void OnTestPartResult(testing::TestPartResult const& result) override {
        if (!result.failed()) return;
        char const* const file = result.file_name() != nullptr ? result.file_name() : "unknown file";
        std::fprintf(stderr, "[rank %d] %s:%d: failure\n%s\n", rank_, file, result.line_number(),
                     result.message());
    }

  private:
    int rank_;
};

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0) {
        testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new FailuresOfRank(rank));
    }
    int const mine = RUN_ALL_TESTS();
    int any = 0;
    MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0 && any != 0 && mine == 0) std::fprintf(stderr, "failed on another rank, see above\n");
    MPI_Finalize();
    return any;
}
