// SPDX-License-Identifier: Apache-2.0
// One throwing check around every MPI call. Private to parallel/: includes <mpi.h>.
#pragma once

#include <source_location>

#include <mpi.h>

#include "core/error.hpp"

namespace holdfast::parallel {

/// Throws Error(retry) with MPI's own text unless `code` is MPI_SUCCESS.
inline void mpi_check(int code, char const* call,
                      std::source_location where = std::source_location::current()) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    fail(ExitCode::retry, "{} failed: {} (the ranks can no longer talk to each other) [{}:{}]", call, text,
         where.file_name(), where.line());
}

}  // namespace holdfast::parallel
