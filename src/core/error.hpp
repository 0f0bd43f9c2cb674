// SPDX-License-Identifier: Apache-2.0
// One exception type, carrying the exit code it leads to. Messages follow one grammar:
// what is wrong (why that matters) what to try; they name the value, the path and the rank.
// Our own bugs are assert()s; require() is for everything that comes from outside.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/exit_code.hpp"

namespace holdfast {

class Error : public std::runtime_error {
  public:
    Error(ExitCode code, std::string const& message) : std::runtime_error(message), code_(code) {}
    ExitCode code() const { return code_; }

  private:
    ExitCode code_;
};

/// An error that every rank of the launch throws at the same place, so that one of them can speak for all.
class AgreedError : public Error {
  public:
    using Error::Error;
};

/// Throws Error{code} with the formatted message.
template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
    throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error{code} with the formatted message unless `condition` holds.
template <typename... Args>
void require(bool condition, ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
    if (!condition) fail(code, format, std::forward<Args>(args)...);
}

}  // namespace holdfast
