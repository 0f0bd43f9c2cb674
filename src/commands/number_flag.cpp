// SPDX-License-Identifier: Apache-2.0
#include "commands/number_flag.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace holdfast::commands {
namespace {

/// `wanted`: returns what a bad value should have been, empty for a good one. `range` is for --help.
template <class Wanted>
CLI::Option* check(CLI::Option* option, std::string range, Wanted wanted) {
    auto const check_text = [option, wanted](std::string const& text) {
        std::string const what = wanted(text);
        // Returned, CLI11 would put the name with a colon before it.
        if (!what.empty())
            throw CLI::ConversionError(fmt::format("{} is {}, must be {}", option->get_name(), text, what));
        return std::string();
    };
    return option->check(check_text, std::move(range));
}

}  // namespace

CLI::Option* whole_number(CLI::Option* option, std::int64_t minimum, std::int64_t maximum) {
    bool const has_maximum = maximum < std::numeric_limits<std::int64_t>::max();
    std::string const range = has_maximum ? fmt::format("INT in [{} - {}]", minimum, maximum) : "";
    return check(option, range, [minimum, maximum](std::string const& text) -> std::string {
        std::int64_t value = 0;
        if (!CLI::detail::lexical_cast(text, value)) return "a whole number";
        if (value < minimum) return fmt::format("at least {}", minimum);
        if (value > maximum) return fmt::format("at most {}", maximum);
        return "";
    });
}

CLI::Option* number_from_0(CLI::Option* option) {
    return check(option, "", [](std::string const& text) -> std::string {
        double value = 0;
        if (!CLI::detail::lexical_cast(text, value) || !std::isfinite(value)) return "a number of at least 0";
        return value < 0 ? "at least 0" : "";
    });
}

}  // namespace holdfast::commands
