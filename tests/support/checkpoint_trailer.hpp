// SPDX-License-Identifier: Apache-2.0
// The digest trailer of docs/checkpoint-format.md, written a second time: so a test can put a right digest behind
// wrong bytes, and the format cannot change without a test that notices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/digest.hpp"

namespace holdfast::test {

inline constexpr std::size_t trailer_bytes = 64;
inline constexpr std::size_t trailer_digest_bytes = 16;

/// Makes the file's last 16 bytes the digest of all others.
inline void recompute_digest(std::vector<std::byte>& file) {
    std::size_t const digest_at = file.size() - trailer_digest_bytes;
    Digest const digest = digest_of(std::span<std::byte const>(file).first(digest_at));
    for (std::size_t i = 0; i < 8; ++i) {
        file[digest_at + i] = static_cast<std::byte>(digest.high >> (56 - 8 * i));
        file[digest_at + 8 + i] = static_cast<std::byte>(digest.low >> (56 - 8 * i));
    }
}

/// The HDF5 image with a right trailer behind it.
inline std::vector<std::byte> with_trailer(std::vector<std::byte> file, std::uint64_t version = 3) {
    std::uint64_t const length = file.size();
    file.resize(file.size() + trailer_bytes);
    std::byte* const trailer = file.data() + length;
    std::memcpy(trailer, "HOLDFAST", 8);
    std::memcpy(trailer + 8, &version, 8);
    std::memcpy(trailer + 16, &length, 8);
    recompute_digest(file);
    return file;
}

}  // namespace holdfast::test
