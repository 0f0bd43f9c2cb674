// SPDX-License-Identifier: Apache-2.0
// The bytes as a packed image set: opened, and all its images and labels read.
#include <cstdlib>

#include "core/error.hpp"
#include "data/packed_images.hpp"

using namespace holdfast;

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    auto const* const bytes = reinterpret_cast<std::byte const*>(data);
    try {
        data::TrainAndTest const sets = data::decode_packed_images({bytes, bytes + size}, "FILE");
        for (data::ImageDataset const* const set : {sets.train.get(), sets.test.get()}) {
            std::vector<std::uint8_t> pixels(static_cast<std::size_t>(set->shape().num_values()));
            for (std::int64_t i = 0; i < set->size(); ++i) {
                set->read(i, pixels);
                if (set->label(i) >= static_cast<std::int64_t>(set->class_names().size())) std::abort();
            }
        }
    } catch (Error const& error) {
        if (error.code() != ExitCode::do_not_requeue) std::abort();
    }
    return 0;
}
