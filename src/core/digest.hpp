// SPDX-License-Identifier: Apache-2.0
// 128-bit content digests (XXH3): of files, states, data sets and settings. They detect damage and difference;
// they are not a defence against somebody who forges a file on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace holdfast {

struct Digest {
    std::uint64_t high = 0;
    std::uint64_t low = 0;

    friend bool operator==(Digest const&, Digest const&) = default;
    /// 32 lower-case hexadecimal digits, as xxhsum -H2 prints them.
    std::string hex() const;
};

/// Inverse of Digest::hex. Throws Error(do_not_requeue) unless `hex` is 32 hexadecimal digits.
Digest parse_digest(std::string_view hex);

/// XXH3-128 of the bytes, seed 0.
Digest digest_of(std::span<std::byte const> bytes);

/// XXH3-128 of a sequence of pieces; equal to digest_of their concatenation.
class Digester {
  public:
    Digester();
    ~Digester();
    Digester(Digester&&) noexcept;
    Digester& operator=(Digester&&) noexcept;

    void add(std::span<std::byte const> bytes);
    void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
    /// The integer's 8 bytes, little endian.
    void add(std::uint64_t value);
    Digest finish() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace holdfast
