// SPDX-License-Identifier: Apache-2.0
// Expects a holdfast::Error with this exit code whose message contains every one of these pieces.
#pragma once

#include <initializer_list>
#include <string>

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace holdfast::test {

template <typename Action>
void expect_error(Action&& action, std::initializer_list<std::string> pieces,
                  ExitCode code = ExitCode::do_not_requeue) {
    try {
        action();
    } catch (Error const& error) {
        EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
        std::string const message = error.what();
        for (std::string const& piece : pieces) {
            EXPECT_NE(message.find(piece), std::string::npos) << "no '" << piece << "' in: " << message;
        }
        return;
    }
    ADD_FAILURE() << "no error was thrown";
}

}  // namespace holdfast::test
