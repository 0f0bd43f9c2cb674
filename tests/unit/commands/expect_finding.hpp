// SPDX-License-Identifier: Apache-2.0
// What every finding of holdfast doctor must have, whatever it is about.
#pragma once

#include <gtest/gtest.h>

#include "commands/doctor/finding.hpp"

namespace holdfast::commands::doctor {

/// The state, and that there is something to see, why it matters unless all is well, and what to do about trouble.
inline State state_of(Finding const& finding) {
    bool const is_trouble = finding.state == State::warning || finding.state == State::error;
    EXPECT_FALSE(finding.check.empty());
    EXPECT_FALSE(finding.seen.empty());
    EXPECT_EQ(finding.state == State::ok, finding.why.empty()) << finding.seen;
    EXPECT_EQ(is_trouble, !finding.fix.empty()) << finding.seen;
    return finding.state;
}

}  // namespace holdfast::commands::doctor
