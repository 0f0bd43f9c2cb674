// SPDX-License-Identifier: Apache-2.0
// JSON as text for people and scripts. It is UTF-8, but names of files and hosts need not be.
#pragma once

#include <string>

namespace holdfast {

/// `indent` -1: one line. What is not UTF-8 in a string becomes U+FFFD, where dump() alone would throw. A template, so that
/// this header brings no JSON library into every file.
template <typename Json>
std::string json_text(Json const& json, int indent = 2) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace holdfast
