// SPDX-License-Identifier: Apache-2.0
#include "core/process_stat.hpp"

#include <fstream>
#include <iterator>
#include <sstream>

namespace holdfast {

std::vector<std::string> process_stat(std::string const& pid) {
    std::ifstream file("/proc/" + pid + "/stat");
    std::string line;
    std::getline(file, line);
    auto const end_of_name = line.rfind(')');
    if (end_of_name == std::string::npos) return {};
    std::istringstream words(line.substr(end_of_name + 1));
    std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    return fields.size() > stat_start_time ? fields : std::vector<std::string>{};
}

}  // namespace holdfast
