// SPDX-License-Identifier: Apache-2.0
// The input of the network as a device computes it, against what the loader makes of the same samples on the host: for the host
// implementation of the device runtime and for a GPU.
#pragma once

#include <cmath>
#include <cstring>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "data/batch_loader.hpp"

namespace holdfast::test {

/// Images of any shape; all of them and their labels are different.
class NumberedImages : public data::ImageDataset {
  public:
    NumberedImages(std::int64_t size, data::ImageShape shape) : size_(size), shape_(shape) {}
    std::int64_t size() const override { return size_; }
    data::ImageShape shape() const override { return shape_; }
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
    data::ImageShape shape_;
    std::vector<std::string> class_names_{"any"};
};

inline data::Normalization normalization_of(int channels) {
    data::Normalization normalization;
    for (int channel = 0; channel < channels; ++channel) {
        normalization.mean.push_back(0.4f + 0.03f * static_cast<float>(channel));
        normalization.stddev.push_back(0.2f + 0.01f * static_cast<float>(channel));
    }
    return normalization;
}

/// To nearest, ties to even, by comparing with both neighbours.
inline std::uint16_t rounded_to_bfloat16(float value) {
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
inline std::vector<std::byte> in_format(data::ReplicaBatch const& batch, data::ImageShape shape,
                                        cuda::ImageFormat format) {
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

inline Input queue_input(data::ReplicaBatch const& batch, data::ImageShape shape, cuda::ImageFormat format,
                         cuda::Stream const& stream) {
    std::size_t const count = batch.samples.size();
    std::size_t const value_bytes = format.type == cuda::ImageType::float32 ? 4 : 2;
    Input input{cuda::DeviceBytes(count * static_cast<std::size_t>(shape.num_values()) * value_bytes),
                cuda::DeviceBytes(count * sizeof(std::int64_t))};
    batch.on_device.write(format, input.images.data(), reinterpret_cast<std::int64_t*>(input.labels_N.data()),
                          stream);
    return input;
}

/// After the work in `stream`.
inline void expect_bytes(cuda::DeviceBytes const& memory, std::vector<std::byte> const& expected,
                         cuda::Stream const& stream) {
    std::vector<std::byte> found(memory.size());
    cuda::copy(found.data(), memory.data(), found.size(), stream);
    stream.synchronize();
    EXPECT_TRUE(found == expected);
}

struct InputCase {
    std::int64_t num_images;
    data::ImageShape shape;
    data::LoaderPlan plan;
    bool are_all_there = true;
    cuda::ImageFormat format;
};

/// `device`: the number of the one in use.
inline void expect_input_of_the_host(InputCase const& c, int device) {
    auto const& [num_images, shape, plan, are_all_there, format] = c;
    NumberedImages const dataset(num_images, shape);
    data::Normalization const normalization = normalization_of(shape.channels);
    data::DeviceImages images(dataset, normalization, plan.device_plan(), device,
                              are_all_there ? cuda::free_device_memory() : 0);
    EXPECT_EQ(images.are_all_there(), are_all_there);
    std::vector<std::vector<Input>> inputs;
    cuda::Stream const stream;
    {
        data::BatchLoader loader(dataset, normalization, plan, &images);
        for (std::int64_t step = plan.first_step; step < plan.end_step; ++step) {
            std::vector<Input>& of_step = inputs.emplace_back();
            for (data::ReplicaBatch const& batch : loader.next().replicas) {
                EXPECT_TRUE(batch.images_NCHW.empty());
                of_step.push_back(queue_input(batch, shape, format, stream));
            }
        }
    }

    data::BatchLoader host(dataset, normalization, plan);
    for (std::vector<Input> const& of_step : inputs) {
        data::StepBatch const& batch = host.next();
        ASSERT_EQ(of_step.size(), batch.replicas.size());
        for (std::size_t replica = 0; replica < of_step.size(); ++replica) {
            SCOPED_TRACE(testing::Message() << "step " << batch.step << ", replica " << replica);
            expect_bytes(of_step[replica].images, in_format(batch.replicas[replica], shape, format), stream);
            expect_bytes(of_step[replica].labels_N, bytes_of(batch.replicas[replica].labels_N), stream);
        }
    }
}

inline data::LoaderPlan plan_of(int replicas, std::int64_t batch_size, int first, int end,
                                std::int64_t first_step, std::int64_t end_step,
                                data::Augmentation augmentation = data::Augmentation::none) {
    return {7, replicas, batch_size, data::Tail::exact, first, end, first_step, end_step, augmentation};
}

/// All shapes, plans, ways and formats.
inline std::vector<InputCase> input_cases() {
    std::vector<InputCase> cases;
    for (data::ImageShape const& shape :
         {data::ImageShape{3, 32, 32}, data::ImageShape{1, 5, 7}, data::ImageShape{4, 3, 2}})
        for (data::LoaderPlan const& plan :
             {plan_of(5, 2, 0, 5, 0, 13),  // the last step of an epoch leaves replicas empty
              plan_of(5, 2, 2, 4, 3, 9), plan_of(50, 1, 45, 47, 0, 2),  // only empty batches here
              plan_of(3, 4, 0, 3, 0, 8, data::Augmentation::crop_flip),
              plan_of(3, 4, 1, 2, 5, 9, data::Augmentation::crop_flip)})
            for (bool const are_all_there : {true, false})
                for (auto const order : {cuda::ImageOrder::nchw, cuda::ImageOrder::nhwc})
                    for (auto const type : {cuda::ImageType::float32, cuda::ImageType::bfloat16})
                        cases.push_back({41, shape, plan, are_all_there, {order, type}});
    return cases;
}

inline std::ostream& operator<<(std::ostream& stream, InputCase const& c) {
    return stream << c.shape.channels << " channels, " << c.plan.num_replicas << " replicas from step "
                  << c.plan.first_step
                  << (c.are_all_there ? ", all pixels there" : ", pixels with their step")
                  << (c.format.order == cuda::ImageOrder::nhwc ? ", nhwc" : ", nchw")
                  << (c.format.type == cuda::ImageType::bfloat16 ? ", bfloat16" : ", float32");
}

}  // namespace holdfast::test
