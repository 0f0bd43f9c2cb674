// SPDX-License-Identifier: Apache-2.0
// On the host implementation of the device runtime, whose streams are made to do everything as late as they may. On a GPU:
// tests/gpu/data_on_gpu_test.cpp.
#include "data/device_images.hpp"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/deferred_host_streams.hpp"
#include "cuda/limited_host_memory.hpp"
#include "data/batch_loader.hpp"
#include "support/device_input.hpp"
#include "support/expect_error.hpp"

namespace holdfast::data {
namespace {

TEST(DeviceImages, AreTheBytesOfTheHost) {
    cuda::DeferredHostStreams const deferred;
    for (test::InputCase const& one : test::input_cases()) {
        SCOPED_TRACE(testing::Message() << one);
        test::expect_input_of_the_host(one, -1);
        if (HasFailure()) return;
    }
}

TEST(DeviceImages, GoThereIfTheyTakeNoMoreThanAllowed) {
    test::NumberedImages const dataset(10, {3, 4, 5});
    auto const all_there = [&](std::size_t limit_bytes) {
        DeviceImages const images(dataset, test::normalization_of(3), {.max_samples = 2}, -1, limit_bytes);
        EXPECT_NE(images.description().find(images.are_all_there() ? "all pixels" : "too much"),
                  std::string::npos);
        return images.are_all_there();
    };
    EXPECT_TRUE(all_there(600));
    EXPECT_FALSE(all_there(599));
    EXPECT_FALSE(all_there(0));
}

TEST(DeviceImages, MayTakeAQuarterOfTheFreeMemory) {
    test::NumberedImages const dataset(10, {3, 40, 50});  // 60,000 bytes
    for (bool const suffices : {true, false}) {
        cuda::LimitedHostMemory const limit(suffices ? 240'000 : 239'999);
        EXPECT_EQ(DeviceImages(dataset, test::normalization_of(3), {.max_samples = 1}, -1).are_all_there(),
                  suffices);
    }
}

TEST(DeviceImages, OfManyChunksAreAllThere) {
    test::NumberedImages const dataset(70, {3, 256, 256});  // 13 MB
    DeviceImages images(dataset, test::normalization_of(3), {.max_samples = 70}, -1);
    StepBatch step;
    ReplicaBatch& batch = step.replicas.emplace_back();
    ReplicaBatch expected;
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.shape().num_values()));
    for (std::int64_t sample = 69; sample >= 0; --sample) {
        batch.samples.push_back(sample);
        batch.labels_N.push_back(0);
        std::vector<float> image(pixels.size());
        dataset.read(sample, pixels);
        normalize(pixels, dataset.shape(), test::normalization_of(3), image);
        expected.images_NCHW.insert(expected.images_NCHW.end(), image.begin(), image.end());
    }
    images.send(step);
    cuda::Stream const stream;
    test::expect_bytes(test::queue_input(batch, dataset.shape(), {}, stream).images,
                       test::bytes_of(expected.images_NCHW), stream);
}

TEST(DeviceImages, RefuseWhatTheyCannotHold) {
    test::NumberedImages const five_channels(4, {5, 2, 2});
    test::expect_error(
        [&] { DeviceImages(five_channels, test::normalization_of(5), {.max_samples = 1}, -1); },
        {"numbered images", "5 channels", "at most 4", "--device cpu"});
    test::NumberedImages const dataset(4, {3, 2, 2});
    test::expect_error([&] { DeviceImages(dataset, test::normalization_of(1), {.max_samples = 1}, -1); },
                       {"3 channels", "given for 1"});
    DeviceImages images(dataset, test::normalization_of(3), {.max_samples = 1}, -1);
    StepBatch step;
    step.replicas.emplace_back().samples = {0, 1};
    test::expect_error([&] { images.send(step); }, {"2 samples"}, ExitCode::internal_error);
}

TEST(Bfloat16, IsRoundedToNearestAndTiesToEven) {
    for (float const value : {0.0f, -0.0f, 1.0f, -2.5f, 0.1f, 3e38f, 1e-40f, -1e-45f, 2.117904f, -2.429065f})
        EXPECT_EQ(cuda::bfloat16_bits(value), test::rounded_to_bfloat16(value)) << value;
    for (std::uint32_t upper : {0x3f80u, 0x3f81u, 0xbf80u, 0xc001u, 0x0000u})
        for (std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            std::uint32_t const bits = upper << 16 | lower;
            float value = 0;
            std::memcpy(&value, &bits, sizeof bits);
            EXPECT_EQ(cuda::bfloat16_bits(value), test::rounded_to_bfloat16(value)) << value;
        }
}

}  // namespace
}  // namespace holdfast::data
