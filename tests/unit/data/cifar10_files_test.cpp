// SPDX-License-Identifier: Apache-2.0
#include "data/cifar10_files.hpp"

#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::data {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

constexpr std::uintmax_t file_bytes = 30'730'000;
constexpr char const* names[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                 "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};

void put(fs::path const& file, std::int64_t offset, char byte) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(offset);
    stream.put(byte);
    ASSERT_TRUE(stream.flush());
}

/// Six good files, almost all zero (sparse): file f's last record has label f and the pixel 10 + f in green's
/// first place.
class Cifar10Files : public testing::Test {
  protected:
    void SetUp() override {
        fs::create_directory(batches);
        for (int f = 0; f < 6; ++f) {
            std::ofstream(batches / names[f]);
            fs::resize_file(batches / names[f], file_bytes);
            put(batches / names[f], 9999 * 3073, static_cast<char>(f));
            put(batches / names[f], 9999 * 3073 + 1 + 1024, static_cast<char>(10 + f));
        }
    }

    test::TemporaryFolder folder;
    fs::path const batches = folder.path() / "cifar-10-batches-bin";
};

TEST_F(Cifar10Files, AreReadWholeFromTheFolderAndFromItsParent) {
    for (fs::path const& given : {folder.path(), batches}) {
        TrainAndTest const sets = open_cifar10(given);
        ASSERT_EQ(sets.train->size(), 50000);
        ASSERT_EQ(sets.test->size(), 10000);
        EXPECT_EQ(sets.train->shape(), (ImageShape{3, 32, 32}));
        EXPECT_EQ(sets.train->class_names().at(9), "truck");
        EXPECT_NE(sets.train->description().find("50000 training images in " + batches.string()),
                  std::string::npos);
        std::vector<std::uint8_t> pixels(3072);
        std::int64_t sum = 0;
        for (std::int64_t i = 0; i < 50000; ++i) sum += sets.train->label(i);
        EXPECT_EQ(sum, 0 + 1 + 2 + 3 + 4);
        for (int f = 0; f < 5; ++f) {
            EXPECT_EQ(sets.train->label(f * 10000 + 9999), f);
            sets.train->read(f * 10000 + 9999, pixels);
            EXPECT_EQ(pixels[1024], 10 + f);
            EXPECT_EQ(pixels[1023], 0);
        }
        EXPECT_EQ(sets.test->label(9999), 5);
        sets.test->read(9999, pixels);
        EXPECT_EQ(pixels[1024], 15);
    }
}

TEST_F(Cifar10Files, AMissingOneIsNamed) {
    for (char const* const name : names) {
        fs::rename(batches / name, folder.path() / "aside");
        expect_error([&] { open_cifar10(folder.path()); }, {(batches / name).string() + " is missing"});
        fs::rename(folder.path() / "aside", batches / name);
    }
}

TEST_F(Cifar10Files, AnyOtherSizeIsRefusedWithBothNumbers) {
    for (std::uintmax_t const size : {std::uintmax_t{0}, file_bytes - 1, file_bytes - 3073, file_bytes + 1}) {
        fs::resize_file(batches / names[3], size);
        expect_error([&] { open_cifar10(folder.path()); },
                     {(batches / names[3]).string(), std::to_string(size) + " bytes", "expected 30730000"});
    }
}

TEST_F(Cifar10Files, ALabelOutOfRangeIsRefusedWithItsOffset) {
    put(batches / names[4], 9999 * 3073, 10);
    expect_error(
        [&] { open_cifar10(folder.path()); },
        {(batches / names[4]).string(), "label 10 at offset 30726927", "record 9999", "expected 0 to 9"});
    put(batches / names[4], 9999 * 3073, 9);
    put(batches / names[5], 0, static_cast<char>(255));
    expect_error([&] { open_cifar10(folder.path()); }, {"test_batch.bin", "label 255 at offset 0"});
}

TEST_F(Cifar10Files, ADirectoryOrAPipeInPlaceOfAFileIsRefused) {
    fs::remove(batches / names[1]);
    fs::create_directory(batches / names[1]);
    expect_error([&] { open_cifar10(folder.path()); }, {(batches / names[1]).string(), "is a directory"});
    fs::remove(batches / names[1]);
    ASSERT_EQ(::mkfifo((batches / names[1]).c_str(), 0600), 0);
    expect_error([&] { open_cifar10(folder.path()); }, {(batches / names[1]).string(), "not a regular file"});
}

/// Gives up root's rights, which pass every permission check, for a scope.
class Unprivileged {
  public:
    Unprivileged() : was_root_(::geteuid() == 0 && ::seteuid(65534) == 0) {}
    ~Unprivileged() {
        if (was_root_ && ::seteuid(0) != 0) std::abort();
    }

  private:
    bool was_root_;
};

TEST_F(Cifar10Files, AnUnreadableFileOrFolderIsNamed) {
    fs::permissions(folder.path(), fs::perms(0755));
    fs::permissions(batches / names[2], fs::perms(0));
    {
        Unprivileged const scope;
        expect_error([&] { open_cifar10(folder.path()); },
                     {(batches / names[2]).string(), "Permission denied"});
    }
    fs::permissions(batches, fs::perms(0));
    {
        Unprivileged const scope;
        expect_error([&] { open_cifar10(batches); }, {batches.string(), "Permission denied"});
    }
    fs::permissions(batches, fs::perms(0755));
}

TEST_F(Cifar10Files, CutWhileInUseIsAnErrorAndNoCrash) {
    TrainAndTest const sets = open_cifar10(folder.path());
    fs::resize_file(batches / names[0], file_bytes - 1);
    std::vector<std::uint8_t> pixels(3072);
    sets.train->read(9998, pixels);
    expect_error([&] { sets.train->read(9999, pixels); }, {(batches / names[0]).string(), "30729999", "cut"});
}

TEST(Cifar10Folder, ThatHoldsSomethingElseIsRefusedWithTheWayOut) {
    test::TemporaryFolder const folder;
    expect_error([&] { open_cifar10(folder.path()); }, {folder.path().string(), "fetch-cifar10"});

    std::ofstream(folder.path() / "cifar-10-binary.tar.gz") << "x";
    expect_error([&] { open_cifar10(folder.path()); }, {"not unpacked", "tar -xf"});

    fs::create_directory(folder.path() / "cifar-10-batches-py");
    std::ofstream(folder.path() / "cifar-10-batches-py" / "data_batch_1") << "x";
    expect_error([&] { open_cifar10(folder.path()); }, {"Python version"});
    expect_error([&] { open_cifar10(folder.path() / "cifar-10-batches-py"); }, {"Python version"});
}

}  // namespace
}  // namespace holdfast::data
