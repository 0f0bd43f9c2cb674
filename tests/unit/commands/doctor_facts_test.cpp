// SPDX-License-Identifier: Apache-2.0
// How holdfast doctor finds out what it judges, where that needs no launch.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/doctor/host_facts.hpp"
#include "commands/doctor/storage_facts.hpp"
#include "commands/doctor/within.hpp"
#include "core/error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::commands::doctor {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

TEST(Within, AnswersThrowsOrIsLate) {
    EXPECT_EQ(within(60s, [] { return 7; }).value, 7);
    EXPECT_EQ(within(60s, []() -> int { throw std::runtime_error("broken"); }).unknown, "broken");
    auto const late = within(1s, [] {
        std::this_thread::sleep_for(5s);
        return 7;
    });
    EXPECT_EQ(late.unknown, "no answer within 1 s");
    EXPECT_FALSE(late.is_known());
}

TEST(ExistingFolder, IsTheNearestAbove) {
    test::TemporaryFolder const folder;
    fs::create_directories(folder.path() / "a");
    std::ofstream(folder.path() / "file") << "x";
    std::string const a = (folder.path() / "a").string();
    EXPECT_EQ(existing_folder(a), a);
    EXPECT_EQ(existing_folder(a + "/"), a + "/");
    EXPECT_EQ(existing_folder(a + "/b/c"), a);
    EXPECT_EQ(existing_folder("no-such-folder/b"), ".");
    EXPECT_EQ(existing_folder("./no-such-folder"), ".");
    EXPECT_THROW(existing_folder((folder.path() / "file").string()), Error);
    EXPECT_THROW(existing_folder((folder.path() / "file" / "run").string()), Error);
    fs::create_symlink("nowhere", folder.path() / "link");
    EXPECT_THROW(existing_folder((folder.path() / "link").string()), Error) << "mkdir fails there too";
}

TEST(AbsolutePath, ForMessages) {
    EXPECT_EQ(absolute_path("."), fs::current_path().string());
    EXPECT_EQ(absolute_path("a/../b"), (fs::current_path() / "b").string());
    EXPECT_EQ(absolute_path("/a"), "/a");
}

TEST(Nonce, IsSeenAndRemoved) {
    test::TemporaryFolder const folder;
    std::string const path = folder.path().string();
    EXPECT_NE(look_for_nonce(path, "n", "text"), "");
    write_nonce(path, "n", "text");
    EXPECT_EQ(look_for_nonce(path, "n", "text"), "");
    EXPECT_EQ(look_for_nonce(path, "n", "other"), "the file is there with another content");
    EXPECT_THROW(write_nonce(path, "n", "again"), Error) << "never over a file that is there";
    remove_nonce(path, "n");
    EXPECT_TRUE(fs::is_empty(folder.path()));
    EXPECT_THROW(write_nonce(path + "/missing", "n", "text"), Error);
}

TEST(Storage, SyncSpaceAndCheckpoints) {
    test::TemporaryFolder const folder;
    std::string const path = folder.path().string();
    SyncTimes const times = measure_sync(path);
    EXPECT_GT(times.small_s, 0);
    EXPECT_GT(times.mb_per_s, 0);
    EXPECT_TRUE(fs::is_empty(folder.path())) << "it left something behind";
    EXPECT_GT(space_of(path).free_bytes, 0u);
    EXPECT_THROW(space_of(path + "/missing"), Error);
    EXPECT_EQ(checkpoints_of(path).count, 0);
    fs::create_directories(folder.path() / "checkpoints");
    std::ofstream(folder.path() / "checkpoints/step-000000000002.h5") << "four";
    std::ofstream(folder.path() / "checkpoints/step-000000000010.h5") << "eleven";
    EXPECT_EQ(checkpoints_of(path).count, 2);
    EXPECT_EQ(checkpoints_of(path).size_bytes_each, 6u) << "of the newest";
}

TEST(MappedFiles, OfThatNameOnce) {
    EXPECT_THAT(mapped_files("7f1-7f2 r-xp 0 08:01 1 /a b/libnccl.so.2\n"
                             "7f2-7f3 rw-p 0 08:01 1 /a b/libnccl.so.2\n"
                             "7f3-7f4 r-xp 0 08:01 2 /c/libnccl.so.2.28\n"
                             "7f4-7f5 r-xp 0 08:01 3 /c/libnccl-net.so\n"
                             "7f5-7f6 rw-p 0 00:00 0 \n"
                             "7f6-7f7 rw-p 0 00:00 0 [stack]\n",
                             "libnccl.so"),
                testing::ElementsAre("/a b/libnccl.so.2", "/c/libnccl.so.2.28"));
    EXPECT_THAT(mapped_files("", "libnccl.so"), testing::IsEmpty());
}

TEST(LibTorchFound, IsTheLinkedOne) {
    LibTorch const found = find_libtorch(false);
    EXPECT_TRUE(found.folder.is_known()) << found.folder.unknown;
    EXPECT_EQ(found.folder.value, found.built_folder);
    EXPECT_TRUE(fs::exists(fs::path(found.folder.value) / "libtorch_cpu.so"));
}

TEST(Environment, IsOurs) {
    setenv("HOLDFAST_B", "2", 1);
    setenv("HOLDFAST_A", "1", 1);
    EXPECT_THAT(own_environment(), testing::HasSubstr("HOLDFAST_A=1\nHOLDFAST_B=2\n"));
    unsetenv("HOLDFAST_A");
    unsetenv("HOLDFAST_B");
    EXPECT_THAT(own_environment(), testing::Not(testing::HasSubstr("HOLDFAST_A")));
}

TEST(Memory, OfAFolder) {
    EXPECT_TRUE(free_bytes_of("/tmp").is_known());
    EXPECT_EQ(free_bytes_of("/no/such/folder").unknown, "No such file or directory");
}

TEST(Clock, OfOneRank) {
    EXPECT_THAT(collective_clock_offsets(parallel::Communicator()), testing::ElementsAre(0));
}

}  // namespace
}  // namespace holdfast::commands::doctor
