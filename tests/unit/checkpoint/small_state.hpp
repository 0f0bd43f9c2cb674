// SPDX-License-Identifier: Apache-2.0
// A state with every kind of field a checkpoint holds, small enough to flip each of its bytes; and a
// temporary folder.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_image.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::checkpoint {

struct SmallState {
    std::vector<float> weight{1.5f, -2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
    std::vector<float> momentum{0.5f, 0.25f, 0.0f, -0.0f, 1e-30f, 7.0f};
    std::vector<float> running_mean{0.125f, 0.25f};
    std::int64_t num_batches_tracked = 3;
    std::int64_t epoch = 1;
    std::int64_t step = 42;
    double loss_sum = 2.5;
    std::vector<double> epoch_loss{2.25, 1.26};
    std::string settings = R"({"seed": 1})";

    void visit(StateArchive& archive) {
        archive.field("/model/conv1.weight", std::span(weight), {2, 3});
        archive.field("/momentum/conv1.weight", std::span(momentum), {2, 3});
        archive.field("/buffers/bn1.running_mean", std::span(running_mean), {2});
        archive.field("/buffers/bn1.num_batches_tracked", num_batches_tracked);
        archive.field("/progress/epoch", epoch);
        archive.field("/progress/step", step);
        archive.field("/progress/loss_sum", loss_sum);
        archive.field("/history/loss", std::span(epoch_loss), {static_cast<std::int64_t>(epoch_loss.size())});
        archive.field("/settings/json", settings);
    }
    Visit visitor() {
        return [this](StateArchive& archive) { visit(archive); };
    }
    std::vector<std::byte> file() {
        CheckpointImage image(visitor());
        auto const bytes = image.save(visitor());
        return {bytes.begin(), bytes.end()};
    }
    friend bool operator==(SmallState const&, SmallState const&) = default;
};

inline std::vector<std::byte> file_of_step(std::int64_t step) {
    SmallState state;
    state.step = step;
    return state.file();
}

using test::TemporaryFolder;

inline void write_bytes(std::filesystem::path const& path, std::span<std::byte const> bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline std::string text_of(std::filesystem::path const& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace holdfast::checkpoint
