// SPDX-License-Identifier: Apache-2.0
// The bytes as a checkpoint with a right digest (the fuzzer would never find one), and as weights without any: read,
// digested, and loaded whole and in part.
#include <cstdlib>

#include "checkpoint/checkpoint_image.hpp"
#include "support/checkpoint_trailer.hpp"
#include "unit/checkpoint/small_state.hpp"

using namespace holdfast;

namespace {

template <typename Read>
void refused_or_read(Read&& read) {
    try {
        read();
    } catch (Error const& error) {
        if (error.code() != ExitCode::do_not_requeue) std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    auto const* const bytes = reinterpret_cast<std::byte const*>(data);
    std::vector<std::byte> const input(bytes, bytes + size);
    refused_or_read([&] {
        checkpoint::CheckpointFile const file(test::with_trailer(input), "FILE");
        refused_or_read([&] { file.text("/settings/json"); });
        refused_or_read([&] { file.integer(checkpoint::step_path); });
        file.state_digest();
        checkpoint::SmallState state;
        file.load(state.visitor());
    });
    refused_or_read([&] {
        checkpoint::CheckpointFile const file(input, "FILE", checkpoint::Trailer::optional);
        std::vector<float> weight(6);
        file.load(
            [&](checkpoint::StateArchive& archive) {
                archive.field("/model/conv1.weight", std::span(weight), {2, 3});
            },
            {checkpoint::parameters_group});
    });
    return 0;
}
