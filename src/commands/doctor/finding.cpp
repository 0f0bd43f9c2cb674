// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor/finding.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace holdfast::commands::doctor {
namespace {

/// The text with every line after the first below the first one's column.
std::string indented(std::string const& text, std::size_t columns) {
    std::string result;
    for (char const letter : text) {
        result += letter;
        if (letter == '\n') result.append(columns, ' ');
    }
    return result;
}

}  // namespace

Finding finding_of(std::string check, State state, std::string const& message) {
    Finding finding{std::move(check), state, message, "", ""};
    std::size_t const why = message.find(" (");
    std::size_t const fix = why == std::string::npos ? why : message.find("); ", why);
    if (fix == std::string::npos) return finding;
    finding.seen = message.substr(0, why);
    finding.why = message.substr(why + 2, fix - why - 2);
    finding.fix = message.substr(fix + 3);
    return finding;
}

char const* name_of(State state) {
    switch (state) {
        case State::ok:
            return "ok";
        case State::unknown:
            return "unknown";
        case State::warning:
            return "warning";
        case State::error:
            return "error";
    }
    return "";
}

int count(Findings const& findings, State state) {
    return static_cast<int>(std::ranges::count(findings, state, &Finding::state));
}

Finding worst_of(Findings const& finding_of_rank, std::vector<std::string> const& host_of_rank) {
    auto const found = std::ranges::max_element(finding_of_rank, {}, &Finding::state);  // the first of equals
    Finding worst = *found;
    if (worst.state == State::ok) return worst;
    auto const rank = static_cast<std::size_t>(found - finding_of_rank.begin());
    int const others = count(finding_of_rank, worst.state) - 1;
    worst.seen = fmt::format("rank {} ({}){}: {}", rank, host_of_rank[rank],
                             others == 0 ? "" : fmt::format(" and {} others", others), worst.seen);
    return worst;
}

std::string text_of(Findings const& findings) {
    std::size_t check_width = 5;
    for (Finding const& finding : findings) check_width = std::max(check_width, finding.check.size());
    std::size_t const indent = check_width + 11;
    std::string text = fmt::format("{:<{}}  {:<7}  {}\n", "check", check_width, "state", "seen");
    for (Finding const& finding : findings) {
        text += fmt::format("{:<{}}  {:<7}  {}\n", finding.check, check_width, name_of(finding.state),
                            indented(finding.seen, indent));
        if (!finding.why.empty())
            text += fmt::format("{:{}}why: {}\n", "", indent, indented(finding.why, indent + 5));
        if (!finding.fix.empty())
            text += fmt::format("{:{}}fix: {}\n", "", indent, indented(finding.fix, indent + 5));
    }
    text += fmt::format("{} errors, {} warnings, {} not known", count(findings, State::error),
                        count(findings, State::warning), count(findings, State::unknown));
    return text;
}

std::string trouble_of(Findings const& findings) {
    std::string text;
    for (Finding const& finding : findings)
        if (finding.state == State::warning || finding.state == State::error)
            text += fmt::format("{}: {}: {} ({}); {}\n", name_of(finding.state), finding.check, finding.seen,
                                finding.why, finding.fix);
    return text;
}

}  // namespace holdfast::commands::doctor
