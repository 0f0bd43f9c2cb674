// SPDX-License-Identifier: Apache-2.0
// Versions of the communication libraries, for the log and for bug reports.
#pragma once

#include <string>

namespace holdfast::parallel {

/// First line of the MPI library's own description, "Open MPI v4.1.4, ...".
std::string mpi_version();
/// NCCL whose header this program was compiled with, and NCCL that is loaded, "2.30.7"; "none" in a build without CUDA.
std::string nccl_version_built();
std::string nccl_version_loaded();

}  // namespace holdfast::parallel
