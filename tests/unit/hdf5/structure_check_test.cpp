// SPDX-License-Identifier: Apache-2.0
#include "hdf5/structure_check.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "hdf5/image_file.hpp"

namespace holdfast::hdf5 {
namespace {

using Bytes = std::vector<std::byte>;
using ::testing::HasSubstr;

/// Two groups, an attribute, a contiguous and a chunked dataset.
Bytes good_file() {
    ImageBuilder builder;
    std::vector<float> const weights(6, 1.5f);
    std::vector<std::uint8_t> const pixels(3000, 7);
    builder.write({"/model/w", ElementType::f32, {2, 3}}, std::as_bytes(std::span(weights)));
    builder.write_compressed({"/train/jpeg", ElementType::u8, {3000}}, std::as_bytes(std::span(pixels)), 1000,
                             6);
    builder.attribute("format", std::string("holdfast-test"));
    return builder.finish().bytes;
}

/// Where the n-th occurrence of a structure's signature or of a text is.
std::size_t find(Bytes const& file, char const* text, int n = 0) {
    auto const* const begin = reinterpret_cast<std::byte const*>(text);
    auto at = file.begin();
    for (;; ++at) {
        at = std::search(at, file.end(), begin, begin + std::strlen(text));
        if (at == file.end()) throw std::runtime_error(std::string("no such place: ") + text);
        if (n-- == 0) return static_cast<std::size_t>(at - file.begin());
    }
}

template <typename Integer>
void put(Bytes& file, std::size_t at, Integer value) {
    std::memcpy(file.data() + at, &value, sizeof value);
}

template <typename Integer>
Integer get(Bytes const& file, std::size_t at) {
    Integer value;
    std::memcpy(&value, file.data() + at, sizeof value);
    return value;
}

std::string complaint(Bytes const& file) {
    try {
        check_structure(file, "file.h5");
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
        EXPECT_THAT(error.what(), HasSubstr("file.h5: "));
        return error.what();
    }
    return "";
}

constexpr std::uint64_t far_away = ~std::uint64_t{0} - 500;
constexpr std::size_t root_header_address_at = 64, end_of_file_at = 40;

TEST(StructureCheck, PassesWhatIsWritten) { EXPECT_EQ(complaint(good_file()), ""); }

// Also superblock 1, which has no checksum: from one, HDF5 1.10.8 believes sizes of trees and asks for 4 GB.
TEST(StructureCheck, RefusesOtherFileFormats) {
    for (int const version : {1, 2, 3, 255}) {
        Bytes other = good_file();
        other[8] = static_cast<std::byte>(version);
        EXPECT_THAT(complaint(other), HasSubstr("superblock " + std::to_string(version) + ", not 0"));
    }
    EXPECT_THAT(complaint(Bytes(8)), HasSubstr("superblock"));
}

TEST(StructureCheck, RefusesFilesThatEndTooEarly) {
    Bytes const file = good_file();
    for (std::size_t const size :
         {std::size_t{9}, std::size_t{95}, std::size_t{96}, file.size() / 2, file.size() - 1})
        EXPECT_NE(complaint(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size))), "")
            << size;
    Bytes declared = file;
    put(declared, end_of_file_at, std::uint64_t{file.size() + 1});
    EXPECT_THAT(complaint(declared), HasSubstr("end of file"));
}

TEST(StructureCheck, RefusesAddressesAndSizesOutsideTheFile) {
    Bytes const good = good_file();
    struct {
        std::size_t at;
        char const* what;
    } const places[] = {{root_header_address_at, "object header"},
                        {find(good, "HEAP") + 24, "name heap"},
                        {find(good, "HEAP") + 8, "name heap"},
                        {find(good, "TREE") + 32, "group node"}};
    for (auto const& [at, what] : places) {
        for (std::uint64_t const value : {far_away, std::uint64_t{1} << 40, std::uint64_t{good.size() - 4}}) {
            Bytes file = good;
            put(file, at, value);
            EXPECT_THAT(complaint(file), HasSubstr(what)) << at << " " << value;
        }
    }
}

TEST(StructureCheck, RefusesCircles) {
    Bytes const good = good_file();
    std::size_t const heap = find(good, "HEAP"), tree = find(good, "TREE");
    Bytes file = good;  // the free list of names: the first free block is the next one too
    auto const data = get<std::uint64_t>(file, heap + 24), first_free = get<std::uint64_t>(file, heap + 16);
    ASSERT_NE(first_free, 1u);
    put(file, data + first_free, first_free);
    EXPECT_THAT(complaint(file), HasSubstr("free list"));
    file = good;  // an index node that is its own child
    file[tree + 5] = std::byte{1};
    put(file, tree + 32, static_cast<std::uint64_t>(tree));
    EXPECT_THAT(complaint(file), HasSubstr("group index"));
    file = good;  // one node in two groups
    std::size_t const other = find(good, "TREE", 1);
    put(file, other + 32, get<std::uint64_t>(file, tree + 32));
    EXPECT_NE(complaint(file), "");
}

TEST(StructureCheck, RefusesCountsBeyondTheNode) {
    Bytes const good = good_file();
    for (char const* const signature : {"TREE", "SNOD"}) {
        Bytes file = good;
        put(file, find(good, signature) + 6, std::uint16_t{60'000});
        EXPECT_THAT(complaint(file), HasSubstr("group")) << signature;
    }
}

TEST(StructureCheck, RefusesSharedMessagesAndAttributesBeyondTheirMessage) {
    Bytes const good = good_file();
    // "format" is the name of an attribute; 16 bytes before it its message's head begins (type 12, size, flags).
    std::size_t const head = find(good, "format") - 16;
    ASSERT_EQ(get<std::uint16_t>(good, head), 12);
    Bytes file = good;
    file[head + 4] |= std::byte{2};
    EXPECT_THAT(complaint(file), HasSubstr("shared"));
    for (std::size_t const length : {2, 4, 6}) {  // of name, type and space
        for (std::uint16_t const value : {0, 1, 60'000, 65'535}) {
            file = good;
            put(file, head + 8 + length, value);
            EXPECT_NE(complaint(file), "") << length << " " << value;
        }
    }
    file = good;  // the message reaches over the end of its header
    put(file, head + 2, std::uint16_t{0xFFF8});
    EXPECT_THAT(complaint(file), HasSubstr("header message"));
}

TEST(StructureCheck, WalksTheIndexOfChunks) {
    Bytes file = good_file();
    for (int n = 0;; ++n) {
        std::size_t const tree = find(file, "TREE", n);
        if (file[tree + 4] != std::byte{1}) continue;  // that of a group
        put(file, tree + 6, std::uint16_t{65});
        break;
    }
    EXPECT_THAT(complaint(file), HasSubstr("chunk index"));
}

}  // namespace
}  // namespace holdfast::hdf5
