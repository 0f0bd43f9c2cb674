// SPDX-License-Identifier: Apache-2.0
// The MPI handles behind Communicator. Private to parallel/: includes <mpi.h>.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <mpi.h>

#include "parallel/communicator.hpp"

namespace holdfast::parallel {

struct Communicator::State {
    MPI_Comm all = MPI_COMM_NULL;  ///< null: one rank, MPI never started
    MPI_Comm within_host = MPI_COMM_NULL;
    int rank = 0;
    int size = 1;
    int local_rank = 0;
    int local_size = 1;
    int num_hosts = 1;
    std::vector<int> host_of_rank = {0};  ///< ascending
    std::string host_name;
    std::function<void(bool)> tell_waiting;  ///< may be empty
};

}  // namespace holdfast::parallel
