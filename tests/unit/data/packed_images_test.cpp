// SPDX-License-Identifier: Apache-2.0
#include "data/packed_images.hpp"

#include <fstream>
#include <functional>
#include <iterator>

#include <gtest/gtest.h>

#include "data/jpeg.hpp"
#include "data/sample_file.hpp"
#include "data/synthetic_images.hpp"
#include "hdf5/image_file.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::data {
namespace {

namespace fs = std::filesystem;
using hdf5::ElementType;
using test::expect_error;

std::string content_of(fs::path const& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(PackImages, ThenOpenGivesTheImagesBack) {
    test::TemporaryFolder const folder;
    TrainAndTest const source = synthetic_datasets(50);
    pack_images(*source.train, *source.test, folder.path() / "set.h5", 95);
    TrainAndTest const packed = open_packed_images(folder.path() / "set.h5");
    ASSERT_EQ(packed.train->size(), 50);
    ASSERT_EQ(packed.test->size(), 10);
    EXPECT_EQ(packed.train->shape(), source.train->shape());
    EXPECT_EQ(packed.train->class_names(), source.train->class_names());
    EXPECT_NE(packed.test->description().find("10 test images in"), std::string::npos);
    std::vector<std::uint8_t> decoded(3072), direct(3072);
    for (std::int64_t i = 0; i < 50; ++i) {
        EXPECT_EQ(packed.train->label(i), source.train->label(i));
        source.train->read(i, direct);
        decode_jpeg(encode_jpeg(direct, {3, 32, 32}, 95), {3, 32, 32}, direct);
        packed.train->read(i, decoded);
        EXPECT_EQ(decoded, direct);
    }
}

TEST(PackImages, GivesTheSameBytesAgainAndReplacesInOneStep) {
    test::TemporaryFolder const folder;
    TrainAndTest const source = synthetic_datasets(20);
    fs::path const file = folder.path() / "set.h5";
    std::ofstream(file) << "older content";
    pack_images(*source.train, *source.test, file);
    std::string const first = content_of(file);
    pack_images(*source.train, *source.test, file);
    EXPECT_EQ(content_of(file), first);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(PackImages, LeavesNothingBehindWhereItFails) {
    test::TemporaryFolder const folder;
    TrainAndTest const source = synthetic_datasets(20);
    fs::create_directory(folder.path() / "taken.h5");
    expect_error([&] { pack_images(*source.train, *source.test, folder.path() / "taken.h5"); }, {"taken.h5"});
    expect_error([&] { pack_images(*source.train, *source.test, folder.path() / "no" / "set.h5"); },
                 {"no/set.h5"});
    for (int const quality : {0, 101}) {
        expect_error([&] { pack_images(*source.train, *source.test, folder.path() / "set.h5", quality); },
                     {"quality " + std::to_string(quality)});
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

struct Split {
    std::vector<std::vector<std::uint8_t>> images;
    std::vector<std::int64_t> offsets;
    std::vector<std::uint8_t> labels;
};

/// The parts of a good packed file of 3 + 2 images of 16 x 8 pixels, to be spoilt one at a time.
struct Parts {
    std::string format = "holdfast-images";
    std::int64_t version = 1;
    std::string class_names = "cat\ndog\n";
    Split train = good(3);
    Split test = good(2);
    std::string left_out;
    ElementType label_type = ElementType::u8;

    static std::vector<std::uint8_t> jpeg(std::uint8_t value, ImageShape shape = {3, 8, 16}) {
        std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape.num_values()));
        for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(value + 3 * i);
        return encode_jpeg(pixels, shape, 75);
    }
    static Split good(int count) {
        Split split;
        for (int i = 0; i < count; ++i) {
            split.images.push_back(jpeg(static_cast<std::uint8_t>(20 * i)));
            split.labels.push_back(static_cast<std::uint8_t>(i % 2));
        }
        split.offsets = offsets_of(split);
        return split;
    }
    static std::vector<std::int64_t> offsets_of(Split const& split) {
        std::vector<std::int64_t> offsets{0};
        for (auto const& image : split.images)
            offsets.push_back(offsets.back() + static_cast<std::int64_t>(image.size()));
        return offsets;
    }

    void write(fs::path const& file) const {
        hdf5::ImageBuilder builder;
        if (!format.empty()) builder.attribute("format", format);
        builder.attribute("version", version);
        auto const add = [&](std::string const& path, ElementType type, auto const& values) {
            if (path == left_out) return;
            auto const bytes = std::as_bytes(std::span(values));
            builder.write({path, type, {static_cast<std::int64_t>(bytes.size() / hdf5::size_of(type))}},
                          bytes);
        };
        add("/class_names", ElementType::u8, class_names);
        for (auto const& [group, split] :
             {std::pair<std::string, Split const&>{"/train", train}, {"/test", test}}) {
            std::vector<std::uint8_t> jpegs;
            for (auto const& image : split.images) jpegs.insert(jpegs.end(), image.begin(), image.end());
            add(group + "/jpeg", ElementType::u8, jpegs);
            add(group + "/offsets", ElementType::i64, split.offsets);
            if (label_type == ElementType::u8) {
                add(group + "/labels", ElementType::u8, split.labels);
            } else {
                add(group + "/labels", label_type,
                    std::vector<std::int64_t>(split.labels.begin(), split.labels.end()));
            }
        }
        std::vector<std::byte> const bytes = builder.finish().bytes;
        std::ofstream(file, std::ios::binary)
            .write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
};

TEST(PackedImages, OfAnySizeAreRead) {
    test::TemporaryFolder const folder;
    Parts{}.write(folder.path() / "good.h5");
    TrainAndTest const sets = open_packed_images(folder.path() / "good.h5");
    EXPECT_EQ(sets.train->size(), 3);
    EXPECT_EQ(sets.test->size(), 2);
    EXPECT_EQ(sets.train->shape(), (ImageShape{3, 8, 16}));
    EXPECT_EQ(sets.train->class_names(), (std::vector<std::string>{"cat", "dog"}));
    EXPECT_EQ(sets.train->label(1), 1);
}

struct Spoilt {
    std::string name;
    std::function<void(Parts&)> spoil;
    std::vector<std::string> message;
};

class SpoiltPackedImages : public testing::TestWithParam<Spoilt> {};

TEST_P(SpoiltPackedImages, AreRefusedWithTheReason) {
    test::TemporaryFolder const folder;
    fs::path const file = folder.path() / "spoilt.h5";
    Parts parts;
    GetParam().spoil(parts);
    parts.write(file);
    expect_error([&] { open_packed_images(file); }, {file.string()});
    for (std::string const& piece : GetParam().message)
        expect_error([&] { open_packed_images(file); }, {piece});
}

std::vector<std::uint8_t> cut(std::vector<std::uint8_t> image, std::size_t bytes) {
    image.resize(image.size() - bytes);
    return image;
}

void replace_image(Parts& parts, std::size_t index, std::vector<std::uint8_t> image) {
    parts.train.images[index] = std::move(image);
    parts.train.offsets = Parts::offsets_of(parts.train);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SpoiltPackedImages,
    testing::Values(
        Spoilt{"OtherFormat", [](Parts& p) { p.format = "holdfast-checkpoint"; }, {"'holdfast-checkpoint'"}},
        Spoilt{"NoFormat", [](Parts& p) { p.format = ""; }, {"'format'"}},
        Spoilt{"OtherVersion", [](Parts& p) { p.version = 2; }, {"version 2", "reads version 1"}},
        Spoilt{"NoLabels", [](Parts& p) { p.left_out = "/train/labels"; }, {"/train/labels is missing"}},
        Spoilt{"NoOffsets", [](Parts& p) { p.left_out = "/test/offsets"; }, {"/test/offsets is missing"}},
        Spoilt{"NoJpegs", [](Parts& p) { p.left_out = "/test/jpeg"; }, {"/test/jpeg is missing"}},
        Spoilt{"NoClassNames", [](Parts& p) { p.left_out = "/class_names"; }, {"/class_names is missing"}},
        Spoilt{"EmptyClassNames", [](Parts& p) { p.class_names = ""; }, {"/class_names has 0 bytes"}},
        Spoilt{
            "LabelsOfOtherType", [](Parts& p) { p.label_type = ElementType::i64; }, {"/train/labels is i64"}},
        Spoilt{"LabelTooLarge",
               [](Parts& p) { p.test.labels[1] = 2; },
               {"/test/labels[1] is 2, expected 0 to 1"}},
        Spoilt{"NoImages",
               [](Parts& p) {
                   p.train = {{}, {0}, {}};
               },
               {"/train/labels is empty"}},
        Spoilt{"TooFewOffsets", [](Parts& p) { p.train.offsets.pop_back(); }, {"3 values, expected 4"}},
        Spoilt{"OffsetsFallBack",
               [](Parts& p) { std::swap(p.train.offsets[1], p.train.offsets[2]); },
               {"/train/offsets[1]"}},
        Spoilt{
            "EmptyImage", [](Parts& p) { p.train.offsets[2] = p.train.offsets[1]; }, {"/train/offsets[1]"}},
        Spoilt{"OffsetsStartLate", [](Parts& p) { p.train.offsets[0] = 1; }, {"runs from 1"}},
        Spoilt{"OffsetsNegative", [](Parts& p) { p.train.offsets[1] = -5; }, {"/train/offsets[0]"}},
        Spoilt{
            "OffsetsBeyondTheEnd", [](Parts& p) { ++p.train.offsets.back(); }, {"the length of /train/jpeg"}},
        Spoilt{"OffsetHuge",
               [](Parts& p) { p.train.offsets[2] = std::int64_t{1} << 62; },
               {"/train/offsets[2]"}},
        Spoilt{"JpegCut",
               [](Parts& p) { replace_image(p, 2, cut(p.train.images[2], 20)); },
               {"train image 2", "damaged"}},
        Spoilt{"FirstJpegCutInItsHeader",
               [](Parts& p) { replace_image(p, 0, cut(p.train.images[0], 500)); },
               {"train image 0", "damaged"}},
        Spoilt{"NoJpegAtAll",
               [](Parts& p) {
                   replace_image(p, 1, {'h', 'e', 'l', 'l', 'o'});
               },
               {"train image 1", "Not a JPEG"}},
        Spoilt{"OtherSize",
               [](Parts& p) {
                   replace_image(p, 1, Parts::jpeg(1, {3, 8, 8}));
               },
               {"train image 1", "8x8, expected 16x8"}},
        Spoilt{"TestOfOtherSize",
               [](Parts& p) {
                   p.test.images = {Parts::jpeg(1, {3, 8, 8}), Parts::jpeg(2, {3, 8, 8})};
                   p.test.offsets = Parts::offsets_of(p.test);
               },
               {"training images are 16x8, test images 8x8"}},
        Spoilt{"ClaimsManyPixels",
               [](Parts& p) {
                   auto image = p.train.images[0];
                   for (std::size_t i = 0; i + 8 < image.size(); ++i) {
                       if (image[i] == 0xff && image[i + 1] == 0xc0)
                           image[i + 5] = image[i + 7] = 0xff;  // height, width
                   }
                   replace_image(p, 0, image);
               },
               {"at most 4096 pixels a side"}}),
    [](auto const& tested) { return tested.param.name; });

TEST(PackedImages, DamagedAnywhereNeverCrash) {
    test::TemporaryFolder const folder;
    fs::path const good = folder.path() / "good.h5";
    TrainAndTest const source = synthetic_datasets(5);
    pack_images(*source.train, *source.test, good);
    std::string const bytes = content_of(good);
    fs::path const bad = folder.path() / "bad.h5";
    int refused = 0;
    for (std::size_t at = 0; at < bytes.size(); at += 37) {
        std::string spoilt = bytes;
        spoilt[at] = static_cast<char>(spoilt[at] ^ (1 << (at % 8)));
        std::ofstream(bad, std::ios::binary) << spoilt;
        try {
            open_packed_images(bad);
        } catch (Error const&) {
            ++refused;
        }
    }
    EXPECT_GT(refused, 0);
    for (std::size_t const size : {std::size_t{0}, std::size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
        std::ofstream(bad, std::ios::binary) << bytes.substr(0, size);
        expect_error([&] { open_packed_images(bad); }, {bad.string()});
    }
}

TEST(PackedImages, ThatAreNoFileAreRefused) {
    test::TemporaryFolder const folder;
    expect_error([&] { open_packed_images(folder.path() / "missing.h5"); }, {"missing.h5", "No such file"});
    expect_error([&] { open_packed_images(folder.path()); }, {"not a regular file"});
}

TEST(Sample, IsSmallBalancedAndReal) {
    fs::path const file = find_sample_file();
    EXPECT_LE(fs::file_size(file), 2'500'000u);
    TrainAndTest const sets = open_packed_images(file);
    EXPECT_EQ(sets.train->size(), 5000);
    EXPECT_EQ(sets.test->size(), 1000);
    EXPECT_EQ(sets.train->class_names().at(6), "frog");
    for (ImageDataset const* const set : {sets.train.get(), sets.test.get()}) {
        std::vector<std::int64_t> count(10, 0);
        for (std::int64_t i = 0; i < set->size(); ++i) ++count.at(static_cast<std::size_t>(set->label(i)));
        EXPECT_EQ(count, std::vector<std::int64_t>(10, set->size() / 10));
    }
    // Decoded pixels are part of what a run is: they must not depend on libjpeg-turbo's version or the
    // processor.
    EXPECT_EQ(digest_of(*sets.train).hex(), "eb6cd84c377e1600a643d6d5e613e2a4");
}

}  // namespace
}  // namespace holdfast::data
