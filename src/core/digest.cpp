// SPDX-License-Identifier: Apache-2.0
#include "core/digest.hpp"

#define XXH_INLINE_ALL
#include <charconv>

#include <xxhash.h>

#include "core/error.hpp"

namespace holdfast {

std::string Digest::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Digest parse_digest(std::string_view hex) {
    Digest digest;
    auto const half = [&](std::size_t begin, std::uint64_t& value) {
        char const* const first = hex.data() + begin;
        auto const result = std::from_chars(first, first + 16, value, 16);
        return result.ec == std::errc{} && result.ptr == first + 16;
    };
    require(hex.size() == 32 && half(0, digest.high) && half(16, digest.low), ExitCode::do_not_requeue,
            "'{}' is not a digest (32 hexadecimal digits)", hex);
    return digest;
}

Digest digest_of(std::span<std::byte const> bytes) {
    XXH128_hash_t const hash = XXH3_128bits(bytes.data(), bytes.size());
    return {hash.high64, hash.low64};
}

struct Digester::State {
    XXH3_state_t xxh;
};

Digester::Digester() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Digester::~Digester() = default;
Digester::Digester(Digester&&) noexcept = default;
Digester& Digester::operator=(Digester&&) noexcept = default;

void Digester::add(std::span<std::byte const> bytes) {
    XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

void Digester::add(std::uint64_t value) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
    add(std::span<std::byte const>(bytes));
}

Digest Digester::finish() const {
    XXH128_hash_t const hash = XXH3_128bits_digest(&state_->xxh);
    return {hash.high64, hash.low64};
}

}  // namespace holdfast
