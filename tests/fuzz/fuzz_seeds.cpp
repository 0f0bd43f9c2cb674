// SPDX-License-Identifier: Apache-2.0
// `fuzz_seeds FOLDER` writes the files that the fuzzers begin with: FOLDER/checkpoint, packed_images and cifar10.
#include <array>
#include <cstdio>
#include <filesystem>

#include "data/jpeg.hpp"
#include "data/packed_images.hpp"
#include "data/synthetic_images.hpp"
#include "unit/checkpoint/small_state.hpp"

using namespace holdfast;

namespace {

namespace fs = std::filesystem;

void write_checkpoints(fs::path const& folder) {
    checkpoint::SmallState state;
    for (char const* const name : {"small", "longer"}) {
        std::vector<std::byte> bytes = state.file();
        bytes.resize(bytes.size() - checkpoint::trailer_bytes);  // the fuzzer puts a right one there
        checkpoint::write_bytes(folder / name, bytes);
        state.settings.assign(3000, '{');
        state.epoch_loss.resize(40);
    }
}

void write_images(fs::path const& folder) {
    for (int const count : {1, 5}) {
        data::TrainAndTest const sets = data::synthetic_datasets(count);
        data::pack_images(*sets.train, *sets.test, folder / std::to_string(count), 30);
    }
    // The same, uncompressed: the fuzzer then changes JPEGs and not deflate streams.
    std::vector<std::uint8_t> pixels(3 * 8 * 8);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(5 * i);
    std::vector<std::uint8_t> const jpeg = data::encode_jpeg(pixels, {3, 8, 8}, 50);
    hdf5::ImageBuilder builder;
    builder.attribute("format", std::string("holdfast-images"));
    builder.attribute("version", std::int64_t{1});
    std::string const names = "cat\n";
    builder.write({"/class_names", hdf5::ElementType::u8, {4}}, std::as_bytes(std::span(names)));
    std::vector<std::int64_t> const offsets{0, static_cast<std::int64_t>(jpeg.size())};
    std::vector<std::uint8_t> const labels{0};
    for (std::string const group : {"/train", "/test"}) {
        builder.write({group + "/jpeg", hdf5::ElementType::u8, {offsets[1]}}, std::as_bytes(std::span(jpeg)));
        builder.write({group + "/offsets", hdf5::ElementType::i64, {2}}, std::as_bytes(std::span(offsets)));
        builder.write({group + "/labels", hdf5::ElementType::u8, {1}}, std::as_bytes(std::span(labels)));
    }
    checkpoint::write_bytes(folder / "plain", builder.finish().bytes);
}

void write_changes(fs::path const& folder) {  // of a CIFAR-10 folder, as fuzz_cifar10.cpp reads them
    std::array<unsigned char, 24> const changes{1, 1, 9, 0, 7, 0, 0, 0, 2, 2, 200, 0,
                                                9, 1, 0, 0, 0, 3, 1, 0, 0, 0, 0,   1};
    checkpoint::write_bytes(folder / "good", std::as_bytes(std::span(changes)));
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 2) {
        std::fprintf(stderr, "Usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    fs::path const folder = argv[1];
    for (char const* const name : {"checkpoint", "packed_images", "cifar10"})
        fs::create_directories(folder / name);
    write_checkpoints(folder / "checkpoint");
    write_images(folder / "packed_images");
    write_changes(folder / "cifar10");
    return 0;
} catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
