// SPDX-License-Identifier: Apache-2.0
// All of CIFAR-10, where HOLDFAST_CIFAR10 names it. A test of its own, so that it is seen to be skipped elsewhere.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "data/cifar10_files.hpp"

namespace holdfast::data {
namespace {

TEST(Cifar10FullSet, HasEachClassEquallyOften) {
    char const* const folder = std::getenv("HOLDFAST_CIFAR10");
    if (folder == nullptr) GTEST_SKIP() << "set HOLDFAST_CIFAR10 to the folder of the full data set";
    TrainAndTest const sets = open_cifar10(folder);
    for (ImageDataset const* const set : {sets.train.get(), sets.test.get()}) {
        std::vector<std::int64_t> count(10, 0);
        for (std::int64_t i = 0; i < set->size(); ++i) ++count[static_cast<std::size_t>(set->label(i))];
        EXPECT_EQ(count, std::vector<std::int64_t>(10, set->size() / 10));
    }
}

}  // namespace
}  // namespace holdfast::data
