// SPDX-License-Identifier: Apache-2.0
#include "train/run_state.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "checkpoint/checkpoint_image.hpp"
#include "core/error.hpp"

namespace holdfast::train {
namespace {

std::span<float> part_of(std::span<float> buffer, model::FlatTensor const& tensor, std::size_t buffer_begin) {
    return buffer.subspan(tensor.offset - buffer_begin, tensor.size);
}

void visit_parameters(checkpoint::StateArchive& archive, std::string_view group,
                      model::FlatLayout const& layout, std::span<float> buffer) {
    for (model::FlatTensor const& tensor : layout.parameters)
        archive.field(fmt::format("{}/{}", group, tensor.name), part_of(buffer, tensor, 0), tensor.shape);
}

void visit_statistics(checkpoint::StateArchive& archive, std::string_view group,
                      model::FlatLayout const& layout, std::span<float> statistics) {
    for (std::size_t i = 0; i < layout.running_means.size(); ++i)
        for (model::FlatTensor const* tensor : {&layout.running_means[i], &layout.running_variances[i]})
            archive.field(fmt::format("{}/{}", group, tensor->name),
                          part_of(statistics, *tensor, layout.means_begin), tensor->shape);
}

void visit_buffers(checkpoint::StateArchive& archive, model::FlatLayout const& layout,
                   std::span<float> statistics, std::int64_t step) {
    visit_statistics(archive, checkpoint::buffers_group, layout, statistics);
    for (model::FlatTensor const& mean : layout.running_means) {
        // torch counts forward passes here; every replica has made `step` of them. Derived, so what is loaded is ignored.
        std::string name = mean.name;
        name.replace(name.rfind("running_mean"), std::string::npos, "num_batches_tracked");
        std::int64_t num_batches_tracked = step;
        archive.field(fmt::format("{}/{}", checkpoint::buffers_group, name), num_batches_tracked);
    }
}

constexpr char history_rows_path[] = "/history/rows";

/// Columns have room for more rows than there are, so that a save seldom changes the structure of the file.
std::size_t history_capacity(std::size_t num_rows) { return (num_rows / 64 + 1) * 64; }

/// A column of the history is an array, so that any HDF5 reader can plot it. `member` gives a row's cell by reference.
template <typename Value, typename Member>
void visit_column(checkpoint::StateArchive& archive, char const* name, std::vector<report::EpochRow>& rows,
                  Member member) {
    std::vector<Value> column(history_capacity(rows.size()));
    for (std::size_t i = 0; i < rows.size(); ++i) column[i] = member(rows[i]);
    archive.field(fmt::format("/history/{}", name), std::span<Value>(column),
                  {static_cast<std::int64_t>(column.size())});
    for (std::size_t i = 0; i < rows.size(); ++i) member(rows[i]) = column[i];
}

report::TestResult& test_of(report::EpochRow& row) {
    if (!row.test) row.test.emplace();
    return *row.test;
}

void visit_history(checkpoint::StateArchive& archive, std::vector<report::EpochRow>& rows) {
    using report::EpochRow;
    auto num_rows = static_cast<std::int64_t>(rows.size());
    archive.field(history_rows_path, num_rows);
    visit_column<std::int64_t>(
        archive, "epoch", rows, [](EpochRow & row) -> auto& { return row.epoch; });
    visit_column<std::int64_t>(
        archive, "step", rows, [](EpochRow & row) -> auto& { return row.step; });
    visit_column<double>(
        archive, "learning_rate", rows, [](EpochRow & row) -> auto& { return row.learning_rate; });
    visit_column<double>(
        archive, "loss", rows, [](EpochRow & row) -> auto& { return row.loss; });
    visit_column<std::int64_t>(
        archive, "train_count", rows, [](EpochRow & row) -> auto& { return row.train_count; });
    visit_column<std::int64_t>(
        archive, "train_correct", rows, [](EpochRow & row) -> auto& { return row.train_correct; });
    visit_column<double>(
        archive, "test_loss", rows, [](EpochRow & row) -> auto& { return test_of(row).loss; });
    visit_column<std::int64_t>(
        archive, "test_count", rows, [](EpochRow & row) -> auto& { return test_of(row).count; });
    visit_column<std::int64_t>(
        archive, "test_correct", rows, [](EpochRow & row) -> auto& { return test_of(row).correct; });
}

}  // namespace

Averages averages_of(Settings const& settings) {
    return settings.ema_decay > 0 ? Averages::kept : Averages::none;
}

std::size_t StateTensors::num_floats(model::FlatLayout const& layout, Averages averages) {
    std::size_t const parameters = layout.num_parameter_floats();
    std::size_t const statistics = layout.num_statistics_floats();
    return 2 * parameters + statistics + (averages == Averages::kept ? parameters + statistics : 0);
}

StateTensors StateTensors::in(std::span<float> buffer, model::FlatLayout const& layout, Averages averages) {
    auto const take = [&](std::size_t size) {
        std::span<float> const part = buffer.first(size);
        buffer = buffer.subspan(size);
        return part;
    };
    StateTensors tensors;
    tensors.parameters = take(layout.num_parameter_floats());
    tensors.momentum = take(layout.num_parameter_floats());
    tensors.statistics = take(layout.num_statistics_floats());
    if (averages == Averages::none) return tensors;
    tensors.average_parameters = take(layout.num_parameter_floats());
    tensors.average_statistics = take(layout.num_statistics_floats());
    return tensors;
}

std::vector<std::pair<char const*, std::span<float>>> StateTensors::parts() const {
    std::vector<std::pair<char const*, std::span<float>>> parts{
        {"parameters", parameters}, {"momentum", momentum}, {"statistics", statistics}};
    if (has_averages()) {
        parts.emplace_back("averages of parameters", average_parameters);
        parts.emplace_back("averages of statistics", average_statistics);
    }
    return parts;
}

std::vector<std::span<float>> StateTensors::per_parameter() const {
    std::vector<std::span<float>> all{parameters, momentum};
    if (has_averages()) all.push_back(average_parameters);
    return all;
}

void StateTensors::restart_averages() const {
    if (!has_averages()) return;
    std::ranges::copy(parameters, average_parameters.begin());
    std::ranges::copy(statistics, average_statistics.begin());
}

void RunState::visit(checkpoint::StateArchive& archive) {
    visit_parameters(archive, checkpoint::parameters_group, *layout, tensors.parameters);
    visit_parameters(archive, checkpoint::momentum_group, *layout, tensors.momentum);
    visit_buffers(archive, *layout, tensors.statistics, step);
    if (tensors.has_averages()) {
        visit_parameters(archive, checkpoint::averages_group, *layout, tensors.average_parameters);
        visit_statistics(archive, checkpoint::averages_group, *layout, tensors.average_statistics);
    }

    archive.field("/progress/epoch", epoch);
    archive.field(checkpoint::step_path, step);
    archive.field("/progress/steps_per_epoch", steps_per_epoch);
    archive.field("/progress/open_epoch_loss_sum", open_epoch.loss_sum);
    archive.field("/progress/open_epoch_count", open_epoch.count);
    archive.field("/progress/open_epoch_correct", open_epoch.correct);

    visit_history(archive, history);

    std::string text = to_json(settings);
    archive.field("/settings/json", text);
    archive.field("/fingerprint/json", fingerprint);
}

void RunState::load(checkpoint::CheckpointFile const& file) {
    Settings of_file = settings_from_json(file.text("/settings/json"), file.name());
    std::vector<report::EpochRow> before(num_evaluated_epochs(file));
    std::swap(history, before);
    try {
        file.load([this](checkpoint::StateArchive& archive) { visit(archive); });
    } catch (Error const&) {
        std::swap(history, before);
        throw;
    }
    settings = std::move(of_file);
}

std::size_t num_evaluated_epochs(checkpoint::CheckpointFile const& file) {
    std::int64_t const num_rows = file.integer(history_rows_path);
    std::size_t const capacity = file.read("/history/step").size() / sizeof(std::int64_t);
    require(num_rows >= 0 && static_cast<std::size_t>(num_rows) < capacity, ExitCode::do_not_requeue,
            "{}: {} is {}, but there is room for fewer than {} rows", file.name(), history_rows_path,
            num_rows, capacity);
    return static_cast<std::size_t>(num_rows);
}

std::optional<report::TestResult> test_result_of(checkpoint::CheckpointFile const& file) {
    std::size_t const num_rows = num_evaluated_epochs(file);
    if (num_rows == 0) return std::nullopt;
    auto const last_of = [&]<typename Value>(char const* path, Value value) {
        std::vector<std::byte> const column = file.read(path);
        std::size_t const at = (num_rows - 1) * sizeof value;
        require(at + sizeof value <= column.size(), ExitCode::do_not_requeue, "{}: {} has fewer than {} rows",
                file.name(), path, num_rows);
        std::memcpy(&value, column.data() + at, sizeof value);
        return value;
    };
    if (last_of("/history/step", std::int64_t{}) != file.integer(checkpoint::step_path)) return std::nullopt;
    return report::TestResult{last_of("/history/test_loss", 0.0),
                              last_of("/history/test_count", std::int64_t{}),
                              last_of("/history/test_correct", std::int64_t{})};
}

std::vector<report::EpochRow> history_of(checkpoint::CheckpointFile const& file) {
    std::vector<report::EpochRow> rows(num_evaluated_epochs(file));
    file.load([&](checkpoint::StateArchive& archive) { visit_history(archive, rows); }, {"/history"});
    return rows;
}

void load_weights(checkpoint::CheckpointFile const& file, model::FlatLayout const& layout,
                  StateTensors const& tensors) {
    std::vector<std::string_view> groups{checkpoint::parameters_group};
    bool const has_buffers =
        file.has(fmt::format("{}/{}", checkpoint::buffers_group, layout.running_means.front().name));
    if (has_buffers) groups.push_back(checkpoint::buffers_group);
    file.load(
        [&](checkpoint::StateArchive& archive) {
            visit_parameters(archive, checkpoint::parameters_group, layout, tensors.parameters);
            if (has_buffers) visit_buffers(archive, layout, tensors.statistics, 0);
        },
        groups);
    tensors.restart_averages();
}

void load_evaluated_weights(checkpoint::CheckpointFile const& file, model::FlatLayout const& layout,
                            StateTensors const& tensors) {
    if (!file.has(fmt::format("{}/{}", checkpoint::averages_group, layout.parameters.front().name))) {
        load_weights(file, layout, tensors);
        return;
    }
    file.load(
        [&](checkpoint::StateArchive& archive) {
            visit_parameters(archive, checkpoint::averages_group, layout, tensors.parameters);
            visit_statistics(archive, checkpoint::averages_group, layout, tensors.statistics);
        },
        {checkpoint::averages_group});
}

}  // namespace holdfast::train
