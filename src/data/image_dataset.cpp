// SPDX-License-Identifier: Apache-2.0
#include "data/image_dataset.hpp"

namespace holdfast::data {

Digest digest_of(ImageDataset const& dataset) {
    ImageShape const shape = dataset.shape();
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape.num_values()));
    Digester digester;
    for (std::int64_t const value : {dataset.size(), std::int64_t{shape.channels}, std::int64_t{shape.height},
                                     std::int64_t{shape.width}}) {
        digester.add(static_cast<std::uint64_t>(value));
    }
    for (std::int64_t sample = 0; sample < dataset.size(); ++sample) {
        dataset.read(sample, pixels);
        digester.add(static_cast<std::uint64_t>(dataset.label(sample)));
        digester.add(std::as_bytes(std::span(pixels)));
    }
    return digester.finish();
}

Digest digest_of(ImageDataset const& train_set, ImageDataset const& test_set) {
    Digester digester;
    digester.add(digest_of(train_set).hex());
    digester.add(digest_of(test_set).hex());
    return digester.finish();
}

}  // namespace holdfast::data
