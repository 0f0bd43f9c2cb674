// SPDX-License-Identifier: Apache-2.0
// What holdfast doctor has to say of one thing that it looked at: whether it is well, what was seen, why that matters, and the
// line that puts it right. Checks never throw and never end the command: what cannot be found out is a finding of its own.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"

namespace holdfast::commands::doctor {

enum class State {
    ok,
    unknown,  ///< could not be found out; `why` says why
    warning,  ///< training works, but slowly, or not for long
    error,    ///< training fails, or loses work
};

struct Finding {
    std::string check;  ///< "launcher"; docs/doctor.md lists the names
    State state = State::ok;
    std::string seen;
    std::string why;  ///< empty if ok, as is `fix`
    std::string fix;
};

using Findings = std::vector<Finding>;

/// A message of Error's grammar, "what (why); fix", taken apart.
Finding finding_of(std::string check, State state, std::string const& message);

char const* name_of(State state);
int count(Findings const& findings, State state);

/// What the ranks found of one check, as one finding: the worst of them, which then begins with the first rank that has it and its
/// host. If all is well, rank 0's.
Finding worst_of(Findings const& finding_of_rank, std::vector<std::string> const& host_of_rank);

/// A line for each check, with why and fix below it where it is not ok, and a last line that counts.
std::string text_of(Findings const& findings);
/// Warnings and errors only, one a line in the grammar of messages; empty if all is well.
std::string trouble_of(Findings const& findings);

/// A quantity that may be unknown, and then why it is.
template <typename T>
struct Known {
    T value{};
    std::string unknown;  ///< why; empty if it is known

    bool is_known() const { return unknown.empty(); }
};

}  // namespace holdfast::commands::doctor
