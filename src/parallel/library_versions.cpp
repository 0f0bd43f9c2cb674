// SPDX-License-Identifier: Apache-2.0
#include "parallel/library_versions.hpp"

#include <mpi.h>

#ifdef HOLDFAST_WITH_CUDA
#include "parallel/nccl_communicator.hpp"
#endif

namespace holdfast::parallel {

std::string mpi_version() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);  // may be called without MPI_Init
    std::string const version(text, static_cast<std::size_t>(length));
    return version.substr(0, version.find_first_of(",\n"));
}

#ifdef HOLDFAST_WITH_CUDA
std::string nccl_version_built() { return nccl_versions().compiled; }
std::string nccl_version_loaded() { return nccl_versions().loaded; }
#else
std::string nccl_version_built() { return "none"; }
std::string nccl_version_loaded() { return "none"; }
#endif

}  // namespace holdfast::parallel
