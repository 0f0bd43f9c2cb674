// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace holdfast::commands {

/// "holdfast 0.1.0"
std::string version_line();

}  // namespace holdfast::commands
