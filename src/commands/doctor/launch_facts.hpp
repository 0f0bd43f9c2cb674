// SPDX-License-Identifier: Apache-2.0
// Who started this process and what it may use, as the environment and the kernel tell it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "commands/doctor/launch_checks.hpp"

namespace holdfast::commands::doctor {

/// The value of an environment variable, or null.
using Lookup = std::function<char const*(char const* name)>;

/// All but mpi_size and mpi_failure. What is not a number counts as not set.
Launcher launcher_of(Lookup const& look_up);

/// The cores that a control group allows at a time, given the text of cpu.max ("150000 100000", "max 100000"); 0: no limit.
double cpu_quota_of(std::string const& cpu_max);
/// This process's.
double cpu_quota();

}  // namespace holdfast::commands::doctor
