// SPDX-License-Identifier: Apache-2.0
// A run directory without training: one save does to files what train/run_directory.cpp does, in its order. So every call
// of a save can be made to fail, and every moment of it can be a power cut, thousands of times in seconds.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/durable_file.hpp"
#include "core/digest.hpp"
#include "support/file_calls.hpp"
#include "unit/checkpoint/small_state.hpp"

namespace holdfast::test {

class SavingRun {
  public:
    explicit SavingRun(std::filesystem::path const& path) : path_(path), store_(path) {}

    /// As the first launch does.
    void create() {
        std::filesystem::create_directories(path_ / "checkpoints");
        std::filesystem::create_directory(writer());
    }

    void save(std::int64_t step) {
        checkpoint::AppendedFile ledger(path_ / "ledger.jsonl", 1 << 20, writer());  // once per launch
        store_.commit(step, file_of(step), writer(), [&] {
            checkpoint::write_file_durably(path_ / "metrics.csv", metrics_of(step), writer());
            file_calls::mark("metrics");
            ledger.append_line(ledger_row(step));
            ledger.sync();
        });
        file_calls::mark("committed");
        checkpoint::write_file_durably(path_ / "config.json", "{}\n", writer());
        store_.prune(2, writer());
    }

    std::filesystem::path const& path() const { return path_; }
    std::filesystem::path writer() const { return path_ / "writer-000001"; }
    std::filesystem::path file(std::int64_t step) const { return store_.path_of(step); }

    /// Some pages, so that a write can be torn; other values for each step.
    static std::vector<std::byte> file_of(std::int64_t step) {
        checkpoint::SmallState state;
        state.step = step;
        state.settings.assign(20'000, static_cast<char>('a' + step));
        return state.file();
    }
    static std::string ledger_row(std::int64_t step) {
        return fmt::format(R"({{"end_step":{},"digest":"{}"}})", step, digest_of(file_of(step)).hex());
    }
    static std::string metrics_of(std::int64_t step) {
        std::string text = "epoch,step,lr\n";
        for (std::int64_t row = 0; row <= step; ++row) text += fmt::format("{},{},0.1\n", row, 4 * row);
        return text;
    }

  private:
    std::filesystem::path path_;
    checkpoint::CheckpointStore store_;
};

}  // namespace holdfast::test
