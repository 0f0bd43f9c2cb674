// SPDX-License-Identifier: Apache-2.0
// The range of a flag that is a number. CLI11's own checks print bounds with 309 digits, and let nan pass.
#pragma once

#include <cstdint>
#include <limits>

#include <CLI/CLI.hpp>

namespace holdfast::commands {

/// Makes parsing fail, with a CLI::ConversionError that says "--keep is 1, must be at least 2", unless the value is a whole
/// number of [minimum, maximum]. Returns the option.
CLI::Option* whole_number(CLI::Option* option, std::int64_t minimum,
                          std::int64_t maximum = std::numeric_limits<std::int64_t>::max());

/// The same for a number that is finite and at least 0.
CLI::Option* number_from_0(CLI::Option* option);

}  // namespace holdfast::commands
