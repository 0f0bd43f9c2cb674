// SPDX-License-Identifier: Apache-2.0
// Ranks that should say the same: the first line in which one of them does not, with both values, ranks and hosts.
#pragma once

#include <string>
#include <vector>

#include "parallel/communicator.hpp"

namespace holdfast::parallel {

/// Compares one text per rank, line by line, with the text that most ranks have (of equally many: that of the lowest rank).
/// Returns "'A' on rank 0 (node1), 'B' on rank 3 (node2)" for the first other rank, and an empty text if there is none.
std::string first_difference(std::vector<std::string> const& text_of_rank,
                             std::vector<std::string> const& host_of_rank);

/// Collective. The same of every rank's text, on all ranks.
std::string collective_difference(Communicator const& communicator, std::string const& mine);

}  // namespace holdfast::parallel
