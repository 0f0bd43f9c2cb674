// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include <gtest/gtest.h>

#include "data/image_dataset.hpp"
#include "data/packed_images.hpp"
#include "data/synthetic_images.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::data {
namespace {

using test::expect_error;

TEST(OpenDatasets, SyntheticOnesOfAnySize) {
    EXPECT_EQ(open_datasets("synthetic", 0, 0).train->size(), 2048);
    EXPECT_EQ(open_datasets("synthetic:77", 0, 0).train->size(), 77);
    for (char const* const spec :
         {"synthetic:", "synthetic:0", "synthetic:-4", "synthetic:7x", "synthetic:99999999999999999999"}) {
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
    expect_error([&] { open_datasets(folder.path().string(), 0, 0); },
                 {folder.path().string(), "fetch-cifar10"});
}

TEST(OpenDatasets, TellsFoldersFilesAndArchivesApart) {
    test::TemporaryFolder const folder;
    auto const file = [&](char const* name) {
        std::ofstream(folder.path() / name) << "x";
        return (folder.path() / name).string();
    };
    expect_error([&] { open_datasets(file("cifar-10-binary.tar.gz"), 0, 0); }, {"is an archive", "tar -xf"});
    expect_error([&] { open_datasets(file("data_batch_1.bin"), 0, 0); }, {"give the folder"});
    expect_error([&] { open_datasets(file("set.h5"), 0, 0); }, {"set.h5", "not an HDF5 file"});
    TrainAndTest const source = synthetic_datasets(20);
    pack_images(*source.train, *source.test, folder.path() / "set.h5");
    EXPECT_EQ(open_datasets((folder.path() / "set.h5").string(), 0, 0).train->size(), 20);
}

}  // namespace
}  // namespace holdfast::data
