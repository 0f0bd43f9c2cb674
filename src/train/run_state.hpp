// SPDX-License-Identifier: Apache-2.0
// Everything a run consists of between two steps, and nothing else: tensors, position, sums of the open epoch, history,
// settings. What can be computed from these (learning rate, sample order) is not kept, so it cannot be lost.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/state_archive.hpp"
#include "model/flat_layout.hpp"
#include "report/metrics_csv.hpp"
#include "train/settings.hpp"

namespace holdfast::checkpoint {
class CheckpointFile;
}

namespace holdfast::train {

/// Whether a run keeps moving averages of parameters and running statistics, to evaluate with.
enum class Averages { none, kept };
Averages averages_of(Settings const& settings);

/// The tensors, once per host, in memory that all its ranks see.
struct StateTensors {
    std::span<float> parameters;          ///< layout.num_parameter_floats()
    std::span<float> momentum;            ///< the same size
    std::span<float> statistics;          ///< layout.num_statistics_floats(): running means, then variances
    std::span<float> average_parameters;  ///< as parameters; empty where no averages are kept
    std::span<float> average_statistics;  ///< as statistics; empty where no averages are kept

    static std::size_t num_floats(model::FlatLayout const& layout, Averages averages = Averages::none);
    /// Parts of one buffer of num_floats().
    static StateTensors in(std::span<float> buffer, model::FlatLayout const& layout,
                           Averages averages = Averages::none);

    /// All of them, by name, in the order of the buffer.
    std::vector<std::pair<char const*, std::span<float>>> parts() const;
    /// Those with a place for every parameter.
    std::vector<std::span<float>> per_parameter() const;
    bool has_averages() const { return !average_parameters.empty(); }
    Averages averages() const { return has_averages() ? Averages::kept : Averages::none; }
    /// The averages, where they are kept, begin with the present values.
    void restart_averages() const;
};

/// Sums over the steps of the epoch that is not finished yet.
struct OpenEpoch {
    double loss_sum = 0;  ///< of loss x samples
    std::int64_t count = 0;
    std::int64_t correct = 0;
};

struct RunState {
    model::FlatLayout const* layout = nullptr;
    StateTensors tensors;
    Settings settings;
    std::string fingerprint;  ///< numeric platform the run is exact on, as JSON (numeric_fingerprint.hpp)
    std::int64_t epoch = 0;   ///< of the next step
    std::int64_t step = 0;    ///< steps done since the start of the run
    std::int64_t steps_per_epoch = 1;
    OpenEpoch open_epoch;
    std::vector<report::EpochRow> history;

    /// All of it, for saving, loading and digesting.
    void visit(checkpoint::StateArchive& archive);
    /// Fills this state, whose layout and tensors must be set. Throws Error(do_not_requeue) with every difference.
    void load(checkpoint::CheckpointFile const& file);
};

/// Rows of the history in a checkpoint: one fewer than finished epochs where the last evaluation was broken off.
std::size_t num_evaluated_epochs(checkpoint::CheckpointFile const& file);

/// The evaluation after the file's last step; none where that step does not end an epoch.
std::optional<report::TestResult> test_result_of(checkpoint::CheckpointFile const& file);
/// The finished epochs in a checkpoint. Throws Error(do_not_requeue) if its history is not one of ours.
std::vector<report::EpochRow> history_of(checkpoint::CheckpointFile const& file);

/// The network's weights and running statistics of a checkpoint or a plain HDF5 file with /model and, optionally, /buffers.
/// Averages begin anew from them.
void load_weights(checkpoint::CheckpointFile const& file, model::FlatLayout const& layout,
                  StateTensors const& tensors);

/// As weights and running statistics: what the file's run evaluates with, which is its averages where it keeps them.
void load_evaluated_weights(checkpoint::CheckpointFile const& file, model::FlatLayout const& layout,
                            StateTensors const& tensors);

}  // namespace holdfast::train
