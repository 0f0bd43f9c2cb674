// SPDX-License-Identifier: Apache-2.0
#include "core/this_host.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace holdfast {
namespace {

TEST(ThisHost, HasTheNameThatTheKernelKnows) {
    EXPECT_EQ(host_name(), first_line_of("/proc/sys/kernel/hostname"));
    EXPECT_FALSE(host_name().empty());
}

TEST(FirstLineOf, IsEmptyWhereThereIsNone) {
    test::TemporaryFolder const folder;
    std::ofstream(folder.path() / "lines") << "first\nsecond\n";
    std::ofstream(folder.path() / "nothing");
    EXPECT_EQ(first_line_of(folder.path() / "lines"), "first");
    EXPECT_EQ(first_line_of(folder.path() / "nothing"), "");
    EXPECT_EQ(first_line_of(folder.path() / "absent"), "");
}

}  // namespace
}  // namespace holdfast
