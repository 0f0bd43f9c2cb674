// SPDX-License-Identifier: Apache-2.0
#include "data/sample_file.hpp"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "data/image_dataset.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::data {
namespace {

namespace fs = std::filesystem;

TEST(SampleFile, IsFoundInTheSourceTree) {
    ::unsetenv("HOLDFAST_SAMPLE");
    EXPECT_TRUE(fs::exists(find_sample_file()));
    EXPECT_EQ(open_datasets("sample", 100, 10).train->size(), 100);
}

TEST(SampleFile, IsFoundBesideAnInstalledProgramFirst) {
    ::unsetenv("HOLDFAST_SAMPLE");
    test::TemporaryFolder const folder;
    fs::path const sample = folder.path() / "share/holdfast/cifar10-sample.h5";
    fs::create_directories(sample.parent_path());
    std::ofstream(sample) << "installed";
    fs::create_directory(folder.path() / "bin");
    std::ofstream(folder.path() / "bin/holdfast") << "program";
    fs::create_symlink("bin/holdfast", folder.path() / "link");
    EXPECT_EQ(find_sample_file(folder.path() / "bin/holdfast"), sample);
    EXPECT_EQ(find_sample_file(folder.path() / "link"), sample);
}

TEST(SampleFile, IsWhereTheEnvironmentSays) {
    test::TemporaryFolder const folder;
    fs::path const file = folder.path() / "other.h5";
    ::setenv("HOLDFAST_SAMPLE", file.c_str(), 1);
    test::expect_error([] { find_sample_file(); }, {"HOLDFAST_SAMPLE", file.string(), "does not exist"});
    std::ofstream(file) << "x";
    EXPECT_EQ(find_sample_file(), file);
    test::expect_error([] { open_datasets("sample", 0, 0); }, {file.string(), "not an HDF5 file"});
    ::unsetenv("HOLDFAST_SAMPLE");
}

}  // namespace
}  // namespace holdfast::data
