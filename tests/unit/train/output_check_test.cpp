// SPDX-License-Identifier: Apache-2.0
#include "train/output_check.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::train {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

TEST(WritableRun, LeavesNothing) {
    test::TemporaryFolder const folder;
    fs::path const run = folder.path() / "run";
    fs::create_directory(run);
    require_writable_run(run);
    require_writable_run(folder.path() / "a" / "b" / "");
    EXPECT_TRUE(fs::is_empty(run));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(WritableRun, TellsWhatMakingItWillMeet) {
    test::TemporaryFolder const folder;
    fs::path const file = folder.path() / "file";
    std::ofstream(file) << "x";
    for (fs::path const& run :
         {file, file / "run", folder.path() / std::string(300, 'x'), fs::path("/proc/no-such/run")})
        expect_error([&] { require_writable_run(run); }, {"cannot create", run.string(), "--run"});
}

TEST(WritableRun, ThatExistsIsWorthAnotherTry) {
    expect_error([] { require_writable_run("/proc"); }, {"cannot write", "/proc", "--run"}, ExitCode::retry);
}

TEST(Appendable, ChangesNothing) {
    test::TemporaryFolder const folder;
    fs::path const file = folder.path() / "file";
    std::ofstream(file) << "x";
    require_appendable(file, folder.path() / "run");
    EXPECT_EQ(fs::file_size(file), 1);
    require_appendable(folder.path() / "new", folder.path() / "run");
    EXPECT_FALSE(fs::exists(folder.path() / "new"));
}

TEST(Appendable, MayBeInTheRunToBeMade) {
    test::TemporaryFolder const folder;
    fs::path const run = folder.path() / "run";
    require_appendable(run / "file", run);
    require_appendable(run / "file", folder.path() / "." / "run" / "");
    expect_error([&] { require_appendable(run / "deeper" / "file", run); }, {"--log-indices", "deeper"});
}

TEST(Appendable, TellsWhatIsWrong) {
    test::TemporaryFolder const folder;
    for (fs::path const& file : {folder.path(), folder.path() / "missing" / "file", fs::path("/proc/x")})
        expect_error([&] { require_appendable(file, "run"); }, {"--log-indices " + file.string(), "errno"});
}

}  // namespace
}  // namespace holdfast::train
