// SPDX-License-Identifier: Apache-2.0
#include "hdf5/image_file.hpp"

#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include "core/error.hpp"

namespace holdfast::hdf5 {
namespace {

using Bytes = std::vector<std::byte>;
using ::testing::HasSubstr;

template <typename T>
std::span<std::byte const> bytes_of(std::vector<T> const& values) {
    return std::as_bytes(std::span(values));
}

template <typename T>
std::vector<T> read_as(ImageReader const& reader, DatasetInfo const& info) {
    std::vector<T> values(info.num_elements());
    reader.read(info, std::as_writable_bytes(std::span(values)));
    return values;
}

/// What the reader says about the bytes; empty if it accepts and reads them all.
std::string complaint(Bytes const& bytes) {
    try {
        ImageReader const reader(bytes, "file.h5");
        for (DatasetInfo const& info : reader.datasets()) {
            Bytes out(info.size_bytes());
            reader.read(info, out);
        }
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("file.h5"));
        return error.what();
    }
    return "";
}

/// A file made by plain HDF5 calls, to hold what ImageBuilder never writes.
Bytes raw_file(std::function<void(hid_t file)> const& fill) {
    static int number = 0;
    hid_t const access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_core(access, 1 << 16, 0);
    hid_t const file =
        H5Fcreate(("raw" + std::to_string(number++)).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    fill(file);
    H5Fflush(file, H5F_SCOPE_GLOBAL);
    Bytes bytes(static_cast<std::size_t>(H5Fget_file_image(file, nullptr, 0)));
    H5Fget_file_image(file, bytes.data(), bytes.size());
    H5Fclose(file);
    H5Pclose(access);
    return bytes;
}

/// Made before the first reader, which takes the external link class out of the library.
Bytes const file_with_external_link = raw_file(
    [](hid_t file) { H5Lcreate_external("other.h5", "/x", file, "/out", H5P_DEFAULT, H5P_DEFAULT); });

void create_dataset(hid_t file, char const* path, hid_t type, hsize_t extent, hid_t creation) {
    hid_t const space = H5Screate_simple(1, &extent, nullptr);
    hid_t const dataset = H5Dcreate2(file, path, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    ASSERT_GE(dataset, 0);
    H5Dclose(dataset);
    H5Sclose(space);
}

Bytes small_file() {
    ImageBuilder builder;
    std::vector<float> const weights{1.5f, -0.0f, 3.0f, 4.0f, 5.0f, 6.0f};
    builder.write({"/model/conv1.weight", ElementType::f32, {2, 3}}, bytes_of(weights));
    builder.reserve({"/progress/step", ElementType::i64, {}});
    builder.attribute("format", std::string("holdfast-test"));
    builder.attribute("version", std::int64_t{7});
    return builder.finish().bytes;
}

TEST(ImageFile, ReturnsEveryTypeShapeAndAttribute) {
    ImageBuilder builder;
    std::vector<std::uint8_t> const u8{0, 1, 255};
    std::vector<std::int32_t> const i32{-1, 1 << 30};
    std::vector<std::int64_t> const i64{-1, std::int64_t{1} << 62};
    std::vector<float> const f32{1.5f, -0.0f, 3e38f, 1e-45f, std::numeric_limits<float>::quiet_NaN(), 6};
    std::vector<double> const f64{2.25};
    builder.write({"/b/u8", ElementType::u8, {3}}, bytes_of(u8));
    builder.write({"/b/i32", ElementType::i32, {2, 1}}, bytes_of(i32));
    builder.write({"/a/i64", ElementType::i64, {2}}, bytes_of(i64));
    builder.write({"/a/deep/er/f32", ElementType::f32, {1, 2, 3}}, bytes_of(f32));
    builder.write({"/f64", ElementType::f64, {}}, bytes_of(f64));
    builder.write({"/empty", ElementType::f32, {0, 3}}, {});
    builder.attribute("format", std::string("holdfast-test"));
    builder.attribute("nothing", std::string());
    builder.attribute("version", std::int64_t{-7});
    Bytes const bytes = builder.finish().bytes;

    ImageReader const reader(bytes, "file.h5");
    std::vector<std::string> paths;
    for (auto const& info : reader.datasets()) paths.push_back(info.path);
    EXPECT_THAT(paths,
                ::testing::ElementsAre("/a/deep/er/f32", "/a/i64", "/b/i32", "/b/u8", "/empty", "/f64"));
    EXPECT_EQ(read_as<std::uint8_t>(reader, {"/b/u8", ElementType::u8, {3}}), u8);
    EXPECT_EQ(read_as<std::int32_t>(reader, {"/b/i32", ElementType::i32, {2, 1}}), i32);
    EXPECT_EQ(read_as<std::int64_t>(reader, {"/a/i64", ElementType::i64, {2}}), i64);
    EXPECT_EQ(read_as<double>(reader, {"/f64", ElementType::f64, {}}), f64);
    auto const read_f32 = read_as<float>(reader, {"/a/deep/er/f32", ElementType::f32, {1, 2, 3}});
    EXPECT_EQ(std::memcmp(read_f32.data(), f32.data(), sizeof(float) * f32.size()), 0);
    EXPECT_TRUE(reader.has("/empty"));
    EXPECT_FALSE(reader.has("/a"));
    EXPECT_FALSE(reader.has("/nowhere"));
    EXPECT_EQ(reader.attribute("format"), "holdfast-test");
    EXPECT_EQ(reader.attribute("nothing"), "");
    EXPECT_EQ(reader.integer_attribute("version"), -7);
    EXPECT_THROW(reader.attribute("version"), Error);
    EXPECT_THROW(reader.integer_attribute("format"), Error);
    EXPECT_THROW(reader.attribute("absent"), Error);
}

TEST(ImageFile, ContentPatchedAtItsOffsetIsRead) {
    ImageBuilder builder;
    builder.reserve({"/step", ElementType::i64, {}});
    builder.reserve({"/w", ElementType::f32, {1000}});
    auto image = builder.finish();
    std::vector<float> weights(1000);
    std::iota(weights.begin(), weights.end(), 0.5f);
    std::int64_t const step = 123456789012;
    std::memcpy(image.bytes.data() + image.offset_of.at("/w"), weights.data(), 4000);
    std::memcpy(image.bytes.data() + image.offset_of.at("/step"), &step, 8);

    ImageReader const reader(image.bytes, "file.h5");
    EXPECT_EQ(read_as<float>(reader, {"/w", ElementType::f32, {1000}}), weights);
    EXPECT_EQ(read_as<std::int64_t>(reader, {"/step", ElementType::i64, {}}).front(), step);
}

TEST(ImageFile, SameCallsGiveSameBytesAtAnyTime) {
    Bytes const first = small_file();
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5's time stamps count seconds
    EXPECT_EQ(first, small_file());
}

TEST(ImageFile, TwoBuildersAtOnceDoNotMix) {
    ImageBuilder one, two;
    one.write({"/x", ElementType::u8, {1}}, bytes_of(std::vector<std::uint8_t>{1}));
    two.write({"/x", ElementType::u8, {1}}, bytes_of(std::vector<std::uint8_t>{2}));
    Bytes const first = one.finish().bytes, second = two.finish().bytes;
    EXPECT_EQ(read_as<std::uint8_t>(ImageReader(first, "a"), {"/x", ElementType::u8, {1}}).front(), 1);
    EXPECT_EQ(read_as<std::uint8_t>(ImageReader(second, "b"), {"/x", ElementType::u8, {1}}).front(), 2);
}

TEST(ImageFile, CompressedDatasetsShrinkAndReturn) {
    std::vector<std::uint8_t> content(100'001);
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::uint8_t>(i / 700);
    ImageBuilder builder;
    builder.write_compressed({"/bytes", ElementType::u8, {100'001}}, bytes_of(content), 10'000, 6);
    builder.write_compressed({"/rows", ElementType::u8, {1001, 99}},
                             std::span(bytes_of(content)).first(1001 * 99), 5'000, 6);
    builder.write_compressed({"/none", ElementType::u8, {0}}, {}, 5'000, 6);
    Bytes const bytes = builder.finish().bytes;
    EXPECT_LT(bytes.size(), 20'000u);
    ImageReader const reader(bytes, "file.h5");
    EXPECT_EQ(read_as<std::uint8_t>(reader, {"/bytes", ElementType::u8, {100'001}}), content);
    EXPECT_EQ(read_as<std::uint8_t>(reader, {"/rows", ElementType::u8, {1001, 99}}),
              std::vector<std::uint8_t>(content.begin(), content.begin() + 1001 * 99));
}

TEST(ImageFile, ReadNamesWhatDiffers) {
    Bytes const bytes = small_file();
    ImageReader const reader(bytes, "file.h5");
    auto const message = [&](DatasetInfo const& info) -> std::string {
        Bytes out(info.size_bytes());
        try {
            reader.read(info, out);
        } catch (Error const& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(message({"/model/conv1.weight", ElementType::f32, {2, 3}}), "");
    EXPECT_THAT(message({"/model/conv1.weight", ElementType::f32, {3, 2}}),
                HasSubstr("f32 [2, 3], but f32 [3, 2]"));
    EXPECT_THAT(message({"/model/conv1.weight", ElementType::i32, {2, 3}}), HasSubstr("i32 [2, 3]"));
    EXPECT_THAT(message({"/model/conv2.weight", ElementType::f32, {1}}),
                HasSubstr("/model/conv2.weight is missing"));
}

TEST(ImageFile, RefusesWhatIsNotHdf5) {
    EXPECT_THAT(complaint({}), HasSubstr("not an HDF5 file"));
    EXPECT_THAT(complaint(Bytes(1000)), HasSubstr("not an HDF5 file"));
    Bytes const bytes = small_file();
    for (std::size_t size = 0; size < bytes.size(); size += 7) {
        EXPECT_NE(complaint(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))), "")
            << size;
    }
}

TEST(ImageFile, SurvivesEveryFlippedByte) {  // the digest finds damage; here nothing may crash
    Bytes const bytes = small_file();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        for (unsigned const mask : {0x01u, 0x80u, 0xFFu}) {
            Bytes damaged = bytes;
            damaged[i] ^= static_cast<std::byte>(mask);
            complaint(damaged);
        }
    }
}

TEST(ImageFile, RefusesExternalStorage) {
    Bytes const bytes = raw_file([](hid_t file) {
        hid_t const creation = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_external(creation, "/etc/passwd", 0, 64);
        create_dataset(file, "/x", H5T_STD_U8LE, 64, creation);
    });
    EXPECT_THAT(complaint(bytes), HasSubstr("/x keeps its content in another file"));
}

TEST(ImageFile, RefusesLinksThatAreNotHard) {
    EXPECT_THAT(complaint(file_with_external_link), HasSubstr("external link"));
    EXPECT_THAT(
        complaint(raw_file([](hid_t file) { H5Lcreate_soft("/", file, "/soft", H5P_DEFAULT, H5P_DEFAULT); })),
        HasSubstr("/soft is a soft"));
}

TEST(ImageFile, RefusesGroupsInACircleAndDeepOnes) {
    EXPECT_THAT(complaint(raw_file([](hid_t file) {
                    hid_t const group = H5Gcreate2(file, "/g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
                    H5Lcreate_hard(file, "/g", group, "again", H5P_DEFAULT, H5P_DEFAULT);
                    H5Gclose(group);
                })),
                HasSubstr("/g/again is a second name"));
    EXPECT_THAT(complaint(raw_file([](hid_t file) {
                    std::string path;
                    for (int i = 0; i < 50; ++i) {
                        path += "/g";
                        H5Gclose(H5Gcreate2(file, path.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
                    }
                })),
                HasSubstr("nested deeper"));
}

TEST(ImageFile, RefusesVirtualDatasets) {
    Bytes const bytes = raw_file([](hid_t file) {
        hid_t const creation = H5Pcreate(H5P_DATASET_CREATE);
        hsize_t const extent = 8;
        hid_t const space = H5Screate_simple(1, &extent, nullptr);
        H5Pset_virtual(creation, space, "other.h5", "/x", space);
        create_dataset(file, "/v", H5T_STD_U8LE, extent, creation);
        H5Sclose(space);
    });
    EXPECT_THAT(complaint(bytes), HasSubstr("/v is a virtual dataset"));
}

TEST(ImageFile, RefusesSizesTheFileDoesNotHold) {
    // Late allocation: the file stays tiny, whatever is declared.
    for (hsize_t const extent : {hsize_t{1} << 20, hsize_t{1} << 62}) {
        EXPECT_THAT(complaint(raw_file(
                        [&](hid_t file) { create_dataset(file, "/x", H5T_STD_U8LE, extent, H5P_DEFAULT); })),
                    HasSubstr("/x declares"));
    }
    EXPECT_THAT(
        complaint(raw_file([](hid_t file) {
            hsize_t const shape[3] = {hsize_t{1} << 31, hsize_t{1} << 31, 4};
            hid_t const space = H5Screate_simple(3, shape, nullptr);
            H5Dclose(H5Dcreate2(file, "/x", H5T_STD_U8LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        })),
        HasSubstr("/x declares"));
    EXPECT_THAT(complaint(raw_file([](hid_t file) {
                    hid_t const creation = H5Pcreate(H5P_DATASET_CREATE);
                    hsize_t const chunk = 1 << 19;
                    H5Pset_chunk(creation, 1, &chunk);
                    H5Pset_deflate(creation, 6);
                    create_dataset(file, "/x", H5T_STD_U8LE, 1 << 20, creation);
                })),
                HasSubstr("/x"));
}

TEST(ImageFile, RefusesForeignFiltersAndTypes) {
    EXPECT_THAT(complaint(raw_file([](hid_t file) {
                    hid_t const creation = H5Pcreate(H5P_DATASET_CREATE);
                    hsize_t const chunk = 8;
                    H5Pset_chunk(creation, 1, &chunk);
                    H5Pset_filter(creation, 32015, H5Z_FLAG_OPTIONAL, 0,
                                  nullptr);  // zstd's registered number
                    create_dataset(file, "/x", H5T_STD_U8LE, 8, creation);
                })),
                HasSubstr("HDF5 filter 32015"));
    for (hid_t const type : {H5T_STD_I32BE, H5T_STD_I16LE, H5T_C_S1, H5T_STD_REF_OBJ}) {
        EXPECT_THAT(
            complaint(raw_file([&](hid_t file) { create_dataset(file, "/x", type, 4, H5P_DEFAULT); })),
            HasSubstr("unsupported element type"));
    }
    EXPECT_THAT(complaint(raw_file([](hid_t file) {
                    hid_t const type = H5Tcopy(H5T_STD_I32LE);
                    H5Tcommit2(file, "/type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
                })),
                HasSubstr("/type is neither"));
}

/// A deflated dataset of 1000 bytes in one chunk, whose stored stream is `stream`.
Bytes file_with_stream(std::vector<std::uint8_t> const& stream) {
    return raw_file([&](hid_t file) {
        hid_t const creation = H5Pcreate(H5P_DATASET_CREATE);
        hsize_t const extent = 1000, origin = 0;
        H5Pset_chunk(creation, 1, &extent);
        H5Pset_deflate(creation, 6);
        create_dataset(file, "/x", H5T_STD_U8LE, extent, creation);
        hid_t const dataset = H5Dopen2(file, "/x", H5P_DEFAULT);
        ASSERT_GE(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, &origin, stream.size(), stream.data()), 0);
        H5Dclose(dataset);
    });
}

TEST(ImageFile, RefusesChunksThatInflateToAnotherSize) {
    // zlib streams of 1000, 10 and 5000 zero bytes (Python: zlib.compress(bytes(n), 6)).
    std::vector<std::uint8_t> const right{120, 156, 99, 96, 24, 5, 163, 96, 20, 12, 119, 0, 0, 3, 232, 0, 1};
    std::vector<std::uint8_t> const shorter{120, 156, 99, 96, 128, 1, 0, 0, 10, 0, 1};
    std::vector<std::uint8_t> const longer{120, 156, 237, 193, 49, 1, 0, 0,   0,   194, 160, 245, 79, 109,
                                           10,  63,  160, 0,   0,  0, 0, 128, 183, 1,   19,  136, 0,  1};
    EXPECT_EQ(complaint(file_with_stream(right)), "");
    EXPECT_THAT(complaint(file_with_stream(shorter)), HasSubstr("/x"));
    EXPECT_THAT(complaint(file_with_stream(longer)), HasSubstr("/x"));
    EXPECT_THAT(complaint(file_with_stream({right.begin(), right.end() - 6})), HasSubstr("/x"));
    EXPECT_THAT(complaint(file_with_stream({1, 2, 3, 4, 5, 6, 7, 8})), HasSubstr("/x"));
}

TEST(ImageFile, RefusesVariableLengthAttributes) {
    Bytes const bytes = raw_file([](hid_t file) {
        hid_t const type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, H5T_VARIABLE);
        hid_t const space = H5Screate(H5S_SCALAR);
        hid_t const attribute = H5Acreate2(file, "format", type, space, H5P_DEFAULT, H5P_DEFAULT);
        char const* text = "x";
        H5Awrite(attribute, type, &text);
        H5Aclose(attribute);
    });
    ImageReader const reader(bytes, "file.h5");
    EXPECT_THROW(reader.attribute("format"), Error);
}

TEST(ImageFile, VersionIsNumbers) {
    EXPECT_THAT(library_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace holdfast::hdf5
