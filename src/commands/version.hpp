// SPDX-License-Identifier: Apache-2.0
// What this program is and what it stands on.
#pragma once

#include <string>

namespace holdfast::commands {

/// "holdfast 0.1.0"
std::string version_line();
/// Names and versions of all that the program stands on, as a JSON object: "libtorch", "mpi", ... What has no version of its own
/// here says why.
std::string stack_versions();

}  // namespace holdfast::commands
