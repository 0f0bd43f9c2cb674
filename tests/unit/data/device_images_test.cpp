// SPDX-License-Identifier: Apache-2.0
// What the network sees on a device are the bytes that the loader makes on the host; on the host implementation of the device
// runtime, whose streams are made to do everything as late as they may.
#include "data/device_images.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/deferred_host_streams.hpp"
#include "data/batch_loader.hpp"
#include "support/expect_error.hpp"

namespace holdfast::data {
namespace {

/// Images of any shape; all of them and their labels are different.
class NumberedImages : public ImageDataset {
  public:
    NumberedImages(std::int64_t size, ImageShape shape) : size_(size), shape_(shape) {}
    std::int64_t size() const override { return size_; }
    ImageShape shape() const override { return shape_; }
    std::vector<std::string> const& class_names() const override { return class_names_; }
    std::int64_t label(std::int64_t sample) const override { return sample % 1000 * 7; }
    void read(std::int64_t sample, std::span<std::uint8_t> pixels_CHW) const override {
        for (std::size_t i = 0; i < pixels_CHW.size(); ++i)
            pixels_CHW[i] =
                static_cast<std::uint8_t>((static_cast<std::size_t>(sample) * 89 + i * i + i / 3) % 256);
    }
    std::string description() const override { return "numbered images"; }

  private:
    std::int64_t size_;
    ImageShape shape_;
    std::vector<std::string> class_names_{"any"};
};

Normalization normalization_of(int channels) {
    Normalization normalization;
    for (int channel = 0; channel < channels; ++channel) {
        normalization.mean.push_back(0.4f + 0.03f * static_cast<float>(channel));
        normalization.stddev.push_back(0.2f + 0.01f * static_cast<float>(channel));
    }
    return normalization;
}

/// To nearest, ties to even, by comparing with both neighbours.
std::uint16_t rounded_to_bfloat16(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    std::uint16_t const below = static_cast<std::uint16_t>(bits >> 16);
    auto const distance = [&](std::uint32_t upper) {
        std::uint32_t const wide = upper << 16;
        float neighbour = 0;
        std::memcpy(&neighbour, &wide, sizeof wide);
        return std::fabs(static_cast<double>(neighbour) - static_cast<double>(value));
    };
    double const to_below = distance(below);
    double const to_above = distance(below + 1u);
    bool const up = to_above < to_below || (to_above == to_below && below % 2 == 1);
    return static_cast<std::uint16_t>(below + (up ? 1 : 0));
}

std::vector<std::byte> bytes_of(auto const& values) {
    auto const bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
}

/// What the host's loader makes of a batch, in another format.
std::vector<std::byte> in_format(ReplicaBatch const& batch, ImageShape shape, cuda::ImageFormat format) {
    std::vector<float> floats = batch.images_NCHW;
    if (format.order == cuda::ImageOrder::nhwc) {
        std::size_t i = 0;
        for (std::size_t n = 0; n < batch.samples.size(); ++n)
            for (int y = 0; y < shape.height; ++y)
                for (int x = 0; x < shape.width; ++x)
                    for (int c = 0; c < shape.channels; ++c)
                        floats[i++] = batch.images_NCHW[((n * static_cast<std::size_t>(shape.channels) +
                                                          static_cast<std::size_t>(c)) *
                                                             static_cast<std::size_t>(shape.height) +
                                                         static_cast<std::size_t>(y)) *
                                                            static_cast<std::size_t>(shape.width) +
                                                        static_cast<std::size_t>(x)];
    }
    if (format.type == cuda::ImageType::float32) return bytes_of(floats);
    std::vector<std::uint16_t> halves;
    for (float const value : floats) halves.push_back(rounded_to_bfloat16(value));
    return bytes_of(halves);
}

/// The input of the network in device memory.
struct Input {
    cuda::DeviceBytes images;
    cuda::DeviceBytes labels_N;
};

Input queue_input(ReplicaBatch const& batch, ImageShape shape, cuda::ImageFormat format,
                  cuda::Stream const& stream) {
    std::size_t const count = batch.samples.size();
    std::size_t const value_bytes = format.type == cuda::ImageType::float32 ? 4 : 2;
    Input input{cuda::DeviceBytes(count * static_cast<std::size_t>(shape.num_values()) * value_bytes),
                cuda::DeviceBytes(count * sizeof(std::int64_t))};
    batch.on_device.write(format, input.images.data(), reinterpret_cast<std::int64_t*>(input.labels_N.data()),
                          stream);
    return input;
}

void expect_bytes(cuda::DeviceBytes const& found, std::vector<std::byte> const& expected) {
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_TRUE(expected.empty() || std::memcmp(found.data(), expected.data(), expected.size()) == 0);
}

struct Data {
    std::int64_t size;
    ImageShape shape;
};

struct Case {
    Data data;
    LoaderPlan plan;
    bool are_all_there = true;
    cuda::ImageFormat format;
};

void expect_bytes_of_the_host(Case const& c) {
    auto const& [data, plan, are_all_there, format] = c;
    NumberedImages const dataset(data.size, data.shape);
    Normalization const normalization = normalization_of(data.shape.channels);
    cuda::DeferredHostStreams const deferred;
    DeviceImages images(dataset, normalization, plan.device_plan(), -1,
                        are_all_there ? cuda::free_device_memory() : 0);
    EXPECT_EQ(images.are_all_there(), are_all_there);
    std::vector<std::vector<Input>> inputs;
    cuda::Stream const stream;
    {
        BatchLoader loader(dataset, normalization, plan, &images);
        for (std::int64_t step = plan.first_step; step < plan.end_step; ++step) {
            std::vector<Input>& of_step = inputs.emplace_back();
            for (ReplicaBatch const& batch : loader.next().replicas) {
                EXPECT_TRUE(batch.images_NCHW.empty());
                of_step.push_back(queue_input(batch, data.shape, format, stream));
            }
        }
    }
    stream.synchronize();

    BatchLoader host(dataset, normalization, plan);
    for (std::vector<Input> const& of_step : inputs) {
        StepBatch const& batch = host.next();
        ASSERT_EQ(of_step.size(), batch.replicas.size());
        for (std::size_t replica = 0; replica < of_step.size(); ++replica) {
            SCOPED_TRACE(testing::Message() << "step " << batch.step << ", replica " << replica);
            expect_bytes(of_step[replica].images, in_format(batch.replicas[replica], data.shape, format));
            expect_bytes(of_step[replica].labels_N, bytes_of(batch.replicas[replica].labels_N));
        }
    }
}

LoaderPlan plan_of(int replicas, std::int64_t batch_size, int first, int end, std::int64_t first_step,
                   std::int64_t end_step, Augmentation augmentation = Augmentation::none) {
    return {7, replicas, batch_size, Tail::exact, first, end, first_step, end_step, augmentation};
}

TEST(DeviceBatches, AreTheBytesOfTheHost) {
    for (Data const& data : {Data{41, {3, 32, 32}}, Data{41, {1, 5, 7}}, Data{41, {4, 3, 2}}})
        for (LoaderPlan const& plan :
             {plan_of(5, 2, 0, 5, 0, 13),  // the last step of an epoch leaves replicas empty
              plan_of(5, 2, 2, 4, 3, 9), plan_of(50, 1, 45, 47, 0, 2),  // only empty batches here
              plan_of(3, 4, 0, 3, 0, 8, Augmentation::crop_flip),
              plan_of(3, 4, 1, 2, 5, 9, Augmentation::crop_flip)})
            for (bool const are_all_there : {true, false})
                for (auto const order : {cuda::ImageOrder::nchw, cuda::ImageOrder::nhwc})
                    for (auto const type : {cuda::ImageType::float32, cuda::ImageType::bfloat16}) {
                        SCOPED_TRACE(testing::Message()
                                     << data.shape.channels << " channels, " << plan.num_replicas
                                     << " replicas, all there " << are_all_there << ", order "
                                     << static_cast<int>(order) << ", type " << static_cast<int>(type));
                        expect_bytes_of_the_host({data, plan, are_all_there, {order, type}});
                        if (testing::Test::HasFailure()) return;
                    }
}

TEST(DeviceImages, GoThereIfTheyTakeNoMoreThanAllowed) {
    NumberedImages const dataset(10, {3, 4, 5});
    auto const all_there = [&](std::size_t limit_bytes) {
        DeviceImages const images(dataset, normalization_of(3), {.max_samples = 2}, -1, limit_bytes);
        EXPECT_NE(images.description().find(images.are_all_there() ? "all pixels" : "too much"),
                  std::string::npos);
        return images.are_all_there();
    };
    EXPECT_TRUE(all_there(600));
    EXPECT_FALSE(all_there(599));
    EXPECT_FALSE(all_there(0));
}

TEST(DeviceImages, OfManyChunksAreAllThere) {
    NumberedImages const dataset(70, {3, 256, 256});  // 13 MB
    DeviceImages images(dataset, normalization_of(3), {.max_samples = 70}, -1);
    StepBatch step;
    ReplicaBatch& batch = step.replicas.emplace_back();
    ReplicaBatch expected;
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.shape().num_values()));
    for (std::int64_t sample = 69; sample >= 0; --sample) {
        batch.samples.push_back(sample);
        batch.labels_N.push_back(0);
        std::vector<float> image(pixels.size());
        dataset.read(sample, pixels);
        normalize(pixels, dataset.shape(), normalization_of(3), image);
        expected.images_NCHW.insert(expected.images_NCHW.end(), image.begin(), image.end());
    }
    images.send(step);
    cuda::Stream const stream;
    expect_bytes(queue_input(batch, dataset.shape(), {}, stream).images, bytes_of(expected.images_NCHW));
}

TEST(DeviceImages, RefuseWhatTheyCannotHold) {
    NumberedImages const five_channels(4, {5, 2, 2});
    test::expect_error([&] { DeviceImages(five_channels, normalization_of(5), {.max_samples = 1}, -1); },
                       {"numbered images", "5 channels", "at most 4", "--device cpu"});
    NumberedImages const dataset(4, {3, 2, 2});
    test::expect_error([&] { DeviceImages(dataset, normalization_of(1), {.max_samples = 1}, -1); },
                       {"3 channels", "given for 1"});
    DeviceImages images(dataset, normalization_of(3), {.max_samples = 1}, -1);
    StepBatch step;
    step.replicas.emplace_back().samples = {0, 1};
    test::expect_error([&] { images.send(step); }, {"2 samples"}, ExitCode::internal_error);
}

TEST(Bfloat16, IsRoundedToNearestAndTiesToEven) {
    for (float const value : {0.0f, -0.0f, 1.0f, -2.5f, 0.1f, 3e38f, 1e-40f, -1e-45f, 2.117904f, -2.429065f})
        EXPECT_EQ(cuda::bfloat16_bits(value), rounded_to_bfloat16(value)) << value;
    for (std::uint32_t upper : {0x3f80u, 0x3f81u, 0xbf80u, 0xc001u, 0x0000u})
        for (std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            std::uint32_t const bits = upper << 16 | lower;
            float value = 0;
            std::memcpy(&value, &bits, sizeof bits);
            EXPECT_EQ(cuda::bfloat16_bits(value), rounded_to_bfloat16(value)) << value;
        }
}

}  // namespace
}  // namespace holdfast::data
