// SPDX-License-Identifier: Apache-2.0
#include "data/synthetic_images.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "core/error.hpp"

namespace holdfast::data {
namespace {

constexpr int num_classes = 10;
constexpr int cells = 4;  // the pattern is a smooth surface over cells x cells random corners
constexpr ImageShape image_shape{3, 32, 32};

/// The number at position `counter` of the sequence `stream`: the output function of SplitMix64, whose state
/// is a counter anyway. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
std::uint64_t random_at(std::uint64_t stream, std::uint64_t counter) {
    auto const mix = [](std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    };
    constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15u;
    return mix(mix(stream * golden_gamma + golden_gamma) + counter * golden_gamma);
}

using Pattern = std::array<std::uint8_t, 3 * 32 * 32>;

Pattern class_pattern(int label) {
    auto const corner = [&](int channel, int y, int x) {
        auto const counter = static_cast<std::uint64_t>((channel * (cells + 1) + y) * (cells + 1) + x);
        return static_cast<int>(random_at(static_cast<std::uint64_t>(label), counter) % 192) + 32;
    };
    constexpr int pitch = 32 / cells;
    Pattern pattern;
    for (int channel = 0; channel < 3; ++channel) {
        for (int y = 0; y < 32; ++y) {
            for (int x = 0; x < 32; ++x) {
                int const cell_y = y / pitch, dy = y % pitch, cell_x = x / pitch, dx = x % pitch;
                int const upper =
                    corner(channel, cell_y, cell_x) * (pitch - dx) + corner(channel, cell_y, cell_x + 1) * dx;
                int const lower = corner(channel, cell_y + 1, cell_x) * (pitch - dx) +
                                  corner(channel, cell_y + 1, cell_x + 1) * dx;
                pattern[static_cast<std::size_t>((channel * 32 + y) * 32 + x)] =
                    static_cast<std::uint8_t>((upper * (pitch - dy) + lower * dy) / (pitch * pitch));
            }
        }
    }
    return pattern;
}

class SyntheticImages final : public ImageDataset {
  public:
    SyntheticImages(std::int64_t size, std::uint64_t first_stream, char const* kind)
        : size_(size), first_stream_(first_stream), kind_(kind) {
        for (int label = 0; label < num_classes; ++label) {
            patterns_[static_cast<std::size_t>(label)] = class_pattern(label);
            class_names_.push_back(fmt::format("pattern{}", label));
        }
    }

    std::int64_t size() const override { return size_; }
    ImageShape shape() const override { return image_shape; }
    std::vector<std::string> const& class_names() const override { return class_names_; }
    std::int64_t label(std::int64_t sample) const override {
        assert(0 <= sample && sample < size_);
        return sample % num_classes;
    }
    void read(std::int64_t sample, std::span<std::uint8_t> pixels_CHW) const override {
        Pattern const& pattern = patterns_[static_cast<std::size_t>(label(sample))];
        assert(pixels_CHW.size() == pattern.size());
        std::uint64_t const stream = first_stream_ + static_cast<std::uint64_t>(sample);
        int const brightness = static_cast<int>(random_at(stream, 0) % 65) - 32;
        for (std::size_t i = 0; i < pattern.size(); i += 8) {
            std::uint64_t noise = random_at(stream, 1 + i / 8);
            for (std::size_t j = i; j < i + 8; ++j, noise >>= 8) {
                int const value = pattern[j] + brightness + (static_cast<int>(noise & 0xff) - 128) / 2;
                pixels_CHW[j] = static_cast<std::uint8_t>(std::clamp(value, 0, 255));
            }
        }
    }
    std::string description() const override { return fmt::format("synthetic ({} {} images)", size_, kind_); }

  private:
    std::int64_t size_;
    std::uint64_t first_stream_;
    char const* kind_;
    std::array<Pattern, num_classes> patterns_;
    std::vector<std::string> class_names_;
};

}  // namespace

TrainAndTest synthetic_datasets(std::int64_t num_train) {
    require(num_train >= 1, ExitCode::do_not_requeue,
            "{} synthetic training images asked for; ask for at least 1", num_train);
    // Streams of classes, training and test images must not meet.
    constexpr std::uint64_t train_streams = std::uint64_t{1} << 32, test_streams = std::uint64_t{1} << 48;
    return {
        std::make_unique<SyntheticImages>(num_train, train_streams, "training"),
        std::make_unique<SyntheticImages>(std::max<std::int64_t>(num_train / 5, 1), test_streams, "test")};
}

}  // namespace holdfast::data
