// SPDX-License-Identifier: Apache-2.0
#include "core/this_host.hpp"

#include <fstream>
#include <unistd.h>

namespace holdfast {

std::string host_name() {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    return name;
}

std::string first_line_of(std::filesystem::path const& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

}  // namespace holdfast
