// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "data/image_dataset.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::data {
namespace {

using test::expect_error;

TEST(OpenDatasets, SyntheticOnesOfAnySize) {
    EXPECT_EQ(open_datasets("synthetic", 0, 0).train->size(), 2048);
    EXPECT_EQ(open_datasets("synthetic:77", 0, 0).train->size(), 77);
    for (char const* const spec : {"synthetic:", "synthetic:0", "synthetic:-4", "synthetic:7x", "synthetic:99999999999999999999"}) {
        expect_error([&] { open_datasets(spec, 0, 0); }, {spec, "number of training images"});
    }
}

TEST(OpenDatasets, LimitsKeepTheFirstSamples) {
    TrainAndTest const sets = open_datasets("synthetic:100", 30, 7);
    EXPECT_EQ(sets.train->size(), 30);
    EXPECT_EQ(sets.test->size(), 7);
    expect_error([] { open_datasets("synthetic:100", -1, 0); }, {"--limit-train -1"});
    expect_error([] { open_datasets("synthetic:100", 0, -2); }, {"--limit-test -2"});
}

TEST(OpenDatasets, NamesAPathThatIsNothing) {
    test::TemporaryFolder const folder;
    std::string const missing = (folder.path() / "nothing").string();
    expect_error([&] { open_datasets(missing, 0, 0); }, {missing, "does not exist"});
    expect_error([] { open_datasets("", 0, 0); }, {"does not exist"});
    expect_error([] { open_datasets("/dev/null", 0, 0); }, {"/dev/null"});
    expect_error([&] { open_datasets(folder.path().string(), 0, 0); }, {folder.path().string(), "fetch-cifar10"});
}

}  // namespace
}  // namespace holdfast::data
