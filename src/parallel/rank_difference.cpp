// SPDX-License-Identifier: Apache-2.0
#include "parallel/rank_difference.hpp"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

namespace holdfast::parallel {
namespace {

/// Empty beyond the end.
std::string next_line(std::istream& text) {
    std::string line;
    std::getline(text, line);
    return line;
}

}  // namespace

std::string first_difference(std::vector<std::string> const& text_of_rank,
                             std::vector<std::string> const& host_of_rank) {
    auto const count_of = [&](std::string const& text) { return std::ranges::count(text_of_rank, text); };
    auto const common = std::ranges::max_element(text_of_rank, {}, count_of);
    auto const other =
        std::ranges::find_if(text_of_rank, [&](std::string const& text) { return text != *common; });
    if (other == text_of_rank.end()) return "";
    std::istringstream common_lines(*common);
    std::istringstream other_lines(*other);
    std::string of_common;
    std::string of_other;
    while (of_common == of_other && (common_lines || other_lines)) {
        of_common = next_line(common_lines);
        of_other = next_line(other_lines);
    }
    auto const said = [&](std::string const& line, auto const& position) {
        auto const rank = static_cast<std::size_t>(position - text_of_rank.begin());
        return fmt::format("'{}' on rank {} ({})", line, rank, host_of_rank[rank]);
    };
    return said(of_common, common) + ", " + said(of_other, other);
}

std::string collective_difference(Communicator const& communicator, std::string const& mine) {
    return first_difference(communicator.all_gather(mine), communicator.all_gather(communicator.host_name()));
}

}  // namespace holdfast::parallel
