// SPDX-License-Identifier: Apache-2.0
#include "core/digest.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "support/expect_error.hpp"

namespace holdfast {
namespace {

/// The buffer of xxHash's own sanity test (tests/sanity_test.c), whose vectors for XXH3-128 with seed 0 follow.
std::vector<std::byte> sanity_buffer(std::size_t size) {
    std::vector<std::byte> bytes(size);
    std::uint64_t generator = 2654435761u;
    for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(generator >> 56);
        generator *= 11400714785074694797u;
    }
    return bytes;
}

struct Vector {
    std::size_t size;
    Digest digest;
};

Vector const vectors[] = {
    {0, {0x99aa06d3014798d8, 0x6001c324468d497f}},   {1, {0xa6cd5e9392000f6a, 0xc44bdff4074eecdb}},
    {6, {0x082afe0b8162d12a, 0x3e7039bdda43cfc6}},   {12, {0x6e3efd8fc7802b18, 0x061a192713f69ad9}},
    {222, {0x337e09641b948717, 0xf1aebd597cec6b3a}}, {403, {0x1b6de21e332dd73d, 0xcdeb804d65c6dea4}},
    {512, {0x18d2d110dcc9bca1, 0x617e49599013cb6b}}, {2048, {0xf736557fd47073a5, 0xdd59e2c3a5f038e0}},
};

TEST(Digest, IsXxh3OfTheBytes) {
    for (Vector const& vector : vectors)
        EXPECT_EQ(digest_of(sanity_buffer(vector.size)).hex(), vector.digest.hex()) << vector.size;
}

TEST(Digest, IsPrintedAsXxhsumPrintsIt) {
    EXPECT_EQ(digest_of({}).hex(), "99aa06d3014798d86001c324468d497f");
    EXPECT_EQ((Digest{0x1, 0xab}).hex(), "000000000000000100000000000000ab");
}

TEST(Digest, EveryBitCounts) {
    std::vector<std::byte> bytes = sanity_buffer(300);
    Digest const good = digest_of(bytes);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
        EXPECT_NE(digest_of(bytes), good) << bit;
        bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    bytes.push_back(std::byte{0});
    EXPECT_NE(digest_of(bytes), good);
}

TEST(ParseDigest, IsTheInverseOfHex) {
    for (Vector const& vector : vectors) EXPECT_EQ(parse_digest(vector.digest.hex()), vector.digest);
    EXPECT_EQ(parse_digest("ffffffffffffffff0000000000000000"), (Digest{~std::uint64_t{0}, 0}));
}

TEST(ParseDigest, RefusesEverythingElse) {
    std::string const good = digest_of({}).hex();
    std::vector<std::string> bad{"",
                                 good.substr(1),
                                 good + "0",
                                 " " + good.substr(1),
                                 "-" + good.substr(1),
                                 "+" + good.substr(1),
                                 "0x" + good.substr(2)};
    for (std::size_t at : {0, 15, 16, 31}) {
        bad.push_back(good);
        bad.back()[at] = 'g';
    }
    for (std::string const& text : bad)
        test::expect_error([&] { parse_digest(text); }, {text, "32 hexadecimal digits"});
}

TEST(Digester, PiecesGiveTheDigestOfTheWhole) {
    std::vector<std::byte> const bytes = sanity_buffer(2048);
    for (std::size_t piece : {1, 7, 64, 1000, 2048}) {
        Digester digester;
        for (std::size_t begin = 0; begin < bytes.size(); begin += piece)
            digester.add(std::span(bytes).subspan(begin, std::min(piece, bytes.size() - begin)));
        EXPECT_EQ(digester.finish(), digest_of(bytes)) << piece;
    }
    EXPECT_EQ(Digester().finish(), digest_of({}));
}

TEST(Digester, AnIntegerIsItsEightBytesLittleEndian) {
    Digester digester;
    digester.add(std::uint64_t{0x0102030405060708});
    std::vector<std::byte> bytes;
    for (int value = 8; value >= 1; --value) bytes.push_back(static_cast<std::byte>(value));
    EXPECT_EQ(digester.finish(), digest_of(bytes));
}

TEST(Digester, TextIsItsBytes) {
    Digester digester;
    digester.add("ab");
    digester.add("c");
    EXPECT_EQ(digester.finish().hex(), "06b05ab6733a618578af5f94892f3950");  // XXH3-128 of "abc"
}

TEST(Digester, MovesWithWhatItHasSeen) {
    Digester first;
    first.add("ab");
    Digester second = std::move(first);
    second.add("c");
    EXPECT_EQ(second.finish().hex(), "06b05ab6733a618578af5f94892f3950");
}

}  // namespace
}  // namespace holdfast
