// SPDX-License-Identifier: Apache-2.0
#include "train/run_state.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_image.hpp"
#include "support/expect_error.hpp"
#include "support/random_floats.hpp"
#include "support/small_training.hpp"

namespace holdfast::train {
namespace {

using checkpoint::CheckpointFile;
using checkpoint::CheckpointImage;
using checkpoint::StateArchive;
using test::equal_bytes;
using test::expect_error;

/// A run in the middle of an epoch; every value of every tensor is another.
struct SmallRun {
    explicit SmallRun(std::uint32_t seed = 1, int width = 2, Averages averages = Averages::none)
        : small(seed, 18, width, averages) {
        state.layout = &small.network.layout;
        state.tensors = small.tensors;
        std::vector<float> const values = test::random_floats(small.memory.size(), seed);
        model::FlatLayout const& layout = small.network.layout;
        for (model::FlatTensor const& tensor : layout.parameters)
            fill(state.tensors.momentum, tensor, 0, values);
        for (auto const* part : {&layout.running_means, &layout.running_variances})
            for (model::FlatTensor const& tensor : *part)
                fill(state.tensors.statistics, tensor, layout.means_begin, values);
        if (averages == Averages::none) return;
        std::vector<float> const others = test::random_floats(small.memory.size(), seed + 100);
        for (model::FlatTensor const& tensor : layout.parameters)
            fill(state.tensors.average_parameters, tensor, 0, others);
        for (auto const* part : {&layout.running_means, &layout.running_variances})
            for (model::FlatTensor const& tensor : *part)
                fill(state.tensors.average_statistics, tensor, layout.means_begin, others);
    }

    static void fill(std::span<float> buffer, model::FlatTensor const& tensor, std::size_t begin,
                     std::vector<float> const& values) {
        for (std::size_t i = 0; i < tensor.size; ++i)
            buffer[tensor.offset - begin + i] = values[tensor.offset + i];
    }

    void give_values() {
        state.settings.lr = 0.1 / 3;
        state.settings.model = "resnet18";
        state.settings.data = "/a folder/é";
        state.fingerprint = R"({"torch":"2.15.0"})";
        state.epoch = 2;
        state.step = 17;
        state.steps_per_epoch = 7;
        state.open_epoch = {0.1 + 0.2, 96, 31};
        state.history = {{0, 7, 0.1, 2.25, 800, 100, report::TestResult{2.0 / 3, 160, 20}},
                         {1, 14, 0.010000000000000002, 1.5, 800, 300, report::TestResult{1.0 / 3, 160, 80}}};
    }

    std::vector<std::byte> saved() {
        auto const visit = [this](StateArchive& archive) { state.visit(archive); };
        CheckpointImage image(visit);
        auto const bytes = image.save(visit);
        return {bytes.begin(), bytes.end()};
    }

    test::SmallNetwork small;
    RunState state;
};

TEST(StateTensors, ArePartsOfOneBuffer) {
    test::SmallNetwork small;
    model::FlatLayout const& layout = small.network.layout;
    EXPECT_EQ(small.memory.size(), 2 * layout.num_parameter_floats() + layout.num_statistics_floats());
    EXPECT_EQ(small.tensors.parameters.data(), small.memory.data());
    EXPECT_EQ(small.tensors.momentum.data(), small.memory.data() + layout.num_parameter_floats());
    EXPECT_EQ(small.tensors.statistics.data(), small.memory.data() + 2 * layout.num_parameter_floats());
    EXPECT_EQ(small.tensors.statistics.size(), layout.num_statistics_floats());
}

TEST(RunState, ComesBackFromItsCheckpointToTheLastBit) {
    SmallRun run(1);
    run.give_values();
    CheckpointFile const file(run.saved(), "run/checkpoints/step-000000000017.h5");

    SmallRun other(2);
    ASSERT_FALSE(equal_bytes(other.small.memory, run.small.memory));
    other.state.load(file);
    EXPECT_TRUE(equal_bytes(other.small.memory, run.small.memory));
    EXPECT_EQ(to_json(other.state.settings), to_json(run.state.settings));
    EXPECT_EQ(other.state.fingerprint, run.state.fingerprint);
    EXPECT_EQ(other.state.epoch, 2);
    EXPECT_EQ(other.state.step, 17);
    EXPECT_EQ(other.state.steps_per_epoch, 7);
    EXPECT_EQ(other.state.open_epoch.loss_sum, 0.1 + 0.2);
    EXPECT_EQ(other.state.open_epoch.count, 96);
    EXPECT_EQ(other.state.open_epoch.correct, 31);
    EXPECT_EQ(report::metrics_csv(other.state.history), report::metrics_csv(run.state.history));
    EXPECT_EQ(other.saved(), run.saved());
    EXPECT_EQ(report::metrics_csv(history_of(file)), report::metrics_csv(run.state.history));
}

TEST(StateTensors, AveragesFollowInTheSameBuffer) {
    test::SmallNetwork small(0, 18, 4, Averages::kept);
    model::FlatLayout const& layout = small.network.layout;
    std::size_t const parameters = layout.num_parameter_floats();
    std::size_t const statistics = layout.num_statistics_floats();
    EXPECT_EQ(small.memory.size(), 3 * parameters + 2 * statistics);
    EXPECT_EQ(small.tensors.average_parameters.data(), small.memory.data() + 2 * parameters + statistics);
    EXPECT_EQ(small.tensors.average_parameters.size(), parameters);
    EXPECT_EQ(small.tensors.average_statistics.data(), small.memory.data() + 3 * parameters + statistics);
    EXPECT_EQ(small.tensors.average_statistics.size(), statistics);
    EXPECT_TRUE(StateTensors::in(small.memory, layout).average_parameters.empty());
}

TEST(RunState, AveragesComeBackToo) {
    SmallRun run(1, 2, Averages::kept);
    run.give_values();
    CheckpointFile const file(run.saved(), "x.h5");
    SmallRun other(2, 2, Averages::kept);
    other.state.load(file);
    EXPECT_TRUE(equal_bytes(other.small.memory, run.small.memory));
    EXPECT_EQ(other.saved(), run.saved());

    SmallRun without(2);
    expect_error([&] { without.state.load(file); }, {"extra", "/ema/conv1.weight", "/ema/bn1.running_var"});
    CheckpointFile const file_without(without.saved(), "y.h5");
    expect_error([&] { other.state.load(file_without); }, {"missing", "/ema/fc.bias"});
}

TEST(RunState, AveragesAreInTheDigest) {
    SmallRun run(1, 2, Averages::kept);
    auto const digest = [&] {
        return checkpoint::state_digest([&](StateArchive& archive) { run.state.visit(archive); });
    };
    Digest const before = digest();
    for (std::span<float> const part :
         {run.state.tensors.average_parameters, run.state.tensors.average_statistics}) {
        float const good = part[0];
        part[0] += 1.0f;
        EXPECT_NE(digest(), before);
        part[0] = good;
    }
    EXPECT_EQ(digest(), before);
}

TEST(RunState, AtItsStartComesBackToo) {
    SmallRun run(1);
    SmallRun other(2);
    other.give_values();
    other.state.load(CheckpointFile(run.saved(), "x.h5"));
    EXPECT_TRUE(equal_bytes(other.small.memory, run.small.memory));
    EXPECT_TRUE(other.state.history.empty());
    EXPECT_EQ(other.state.step, 0);
    EXPECT_EQ(other.state.fingerprint, "");
}

TEST(RunState, EverySingleValueIsInTheFile) {
    SmallRun run;
    run.give_values();
    auto const visit = [&](StateArchive& archive) { run.state.visit(archive); };
    CheckpointImage image(visit);
    auto const digest = [&] { return holdfast::digest_of(image.save(visit)); };
    Digest const before = digest();
    model::FlatLayout const& layout = run.small.network.layout;
    auto const expect_seen = [&](float& value, std::string const& name) {
        float const good = value;
        value += 1.0f;
        EXPECT_NE(digest(), before) << name;
        value = good;
    };
    for (model::FlatTensor const& tensor : layout.parameters) {
        expect_seen(run.state.tensors.parameters[tensor.offset + tensor.size - 1], tensor.name);
        expect_seen(run.state.tensors.momentum[tensor.offset + tensor.size - 1],
                    "momentum of " + tensor.name);
    }
    for (auto const* part : {&layout.running_means, &layout.running_variances})
        for (model::FlatTensor const& tensor : *part)
            expect_seen(run.state.tensors.statistics[tensor.offset - layout.means_begin], tensor.name);
    EXPECT_EQ(digest(), before);
}

/// Shows a state without one of its fields, or with one under another name.
class Without final : public StateArchive {
  public:
    Without(StateArchive& archive, std::string hidden, std::string shown_as = {})
        : archive_(archive), hidden_(std::move(hidden)), shown_as_(std::move(shown_as)) {}

    void field(std::string_view path, std::int64_t& value) override { pass(path, value); }
    void field(std::string_view path, double& value) override { pass(path, value); }
    void field(std::string_view path, std::string& text) override { pass(path, text); }
    void field(std::string_view path, std::span<float> values,
               std::vector<std::int64_t> const& shape) override {
        pass(path, values, shape);
    }
    void field(std::string_view path, std::span<std::int64_t> values,
               std::vector<std::int64_t> const& shape) override {
        pass(path, values, shape);
    }
    void field(std::string_view path, std::span<double> values,
               std::vector<std::int64_t> const& shape) override {
        pass(path, values, shape);
    }

  private:
    template <typename... Value>
    void pass(std::string_view path, Value&&... value) {
        if (path != hidden_)
            archive_.field(path, value...);
        else if (!shown_as_.empty())
            archive_.field(shown_as_, value...);
    }

    StateArchive& archive_;
    std::string hidden_;
    std::string shown_as_;
};

std::vector<std::byte> saved_without(SmallRun& run, std::string const& hidden,
                                     std::string const& shown_as = {}) {
    auto const visit = [&](StateArchive& archive) {
        Without without(archive, hidden, shown_as);
        run.state.visit(without);
    };
    CheckpointImage image(visit);
    auto const bytes = image.save(visit);
    return {bytes.begin(), bytes.end()};
}

TEST(RunState, RefusesAFileThatLacksAnything) {
    SmallRun run(1);
    run.give_values();
    for (std::string const path :
         {"/model/layer3.0.conv2.weight", "/momentum/fc.bias", "/buffers/bn1.running_var",
          "/buffers/bn1.num_batches_tracked", "/progress/epoch", "/progress/step",
          "/progress/open_epoch_loss_sum", "/history/test_loss", "/history/epoch", "/settings/json",
          "/fingerprint/json"}) {
        SmallRun other(2);
        std::vector<float> const before = other.small.memory;
        CheckpointFile const file(saved_without(run, path), "cut.h5");
        expect_error([&] { other.state.load(file); }, {"cut.h5", "missing", path});
        EXPECT_TRUE(equal_bytes(other.small.memory, before)) << path;
        EXPECT_EQ(other.state.step, 0) << path;
    }
}

TEST(RunState, RefusesAFileWithTensorsOfAnotherNetwork) {
    SmallRun run(1);
    SmallRun wider(2, 3);
    expect_error(
        [&] { wider.state.load(CheckpointFile(run.saved(), "narrow.h5")); },
        {"narrow.h5", "shape", "/model/conv1.weight", "/momentum/fc.weight", "/buffers/bn1.running_mean"});
    SmallRun other(3);
    expect_error(
        [&] {
            other.state.load(
                CheckpointFile(saved_without(run, "/model/conv1.weight", "/model/conv0.weight"), "x.h5"));
        },
        {"missing: /model/conv1.weight", "extra: /model/conv0.weight"});
}

TEST(RunState, RefusesSettingsOfAnotherProgram) {
    SmallRun run(1);
    auto const visit = [&](StateArchive& archive) {
        Without without(archive, "/settings/json");
        run.state.visit(without);
        std::string text = R"({"learning_rate": 0.1})";
        archive.field("/settings/json", text);
    };
    CheckpointImage image(visit);
    auto const bytes = image.save(visit);
    CheckpointFile const file({bytes.begin(), bytes.end()}, "foreign.h5");
    expect_error([&] { SmallRun(2).state.load(file); }, {"foreign.h5", "settings"});
}

TEST(LoadWeights, TakesWeightsAndStatisticsAndNothingElse) {
    SmallRun run(1);
    run.give_values();
    SmallRun other(2);
    std::vector<float> const momentum(other.state.tensors.momentum.begin(),
                                      other.state.tensors.momentum.end());
    load_weights(CheckpointFile(run.saved(), "x.h5"), other.small.network.layout, other.state.tensors);
    EXPECT_TRUE(equal_bytes(other.state.tensors.parameters, run.state.tensors.parameters));
    EXPECT_TRUE(equal_bytes(other.state.tensors.statistics, run.state.tensors.statistics));
    EXPECT_TRUE(equal_bytes(other.state.tensors.momentum, momentum));
}

TEST(LoadWeights, AveragesBeginWithTheWeights) {
    SmallRun run(1, 2, Averages::kept);
    SmallRun other(2, 2, Averages::kept);
    load_weights(CheckpointFile(run.saved(), "x.h5"), other.small.network.layout, other.state.tensors);
    EXPECT_TRUE(equal_bytes(other.state.tensors.average_parameters, run.state.tensors.parameters));
    EXPECT_TRUE(equal_bytes(other.state.tensors.average_statistics, run.state.tensors.statistics));
}

TEST(LoadEvaluatedWeights, AreTheAveragesWhereTheyAreKept) {
    SmallRun run(1, 2, Averages::kept);
    SmallRun other(2);
    model::FlatLayout const& layout = other.small.network.layout;
    load_evaluated_weights(CheckpointFile(run.saved(), "x.h5"), layout, other.state.tensors);
    EXPECT_TRUE(equal_bytes(other.state.tensors.parameters, run.state.tensors.average_parameters));
    EXPECT_TRUE(equal_bytes(other.state.tensors.statistics, run.state.tensors.average_statistics));

    SmallRun plain(3);
    load_evaluated_weights(CheckpointFile(plain.saved(), "x.h5"), layout, other.state.tensors);
    EXPECT_TRUE(equal_bytes(other.state.tensors.parameters, plain.state.tensors.parameters));
    EXPECT_TRUE(equal_bytes(other.state.tensors.statistics, plain.state.tensors.statistics));
}

TEST(LoadWeights, KeepsTheStatisticsOfAFileThatHasNone) {
    SmallRun run(1);
    auto const visit = [&](StateArchive& archive) {
        for (model::FlatTensor const& tensor : run.small.network.layout.parameters)
            archive.field("/model/" + tensor.name,
                          run.state.tensors.parameters.subspan(tensor.offset, tensor.size), tensor.shape);
    };
    CheckpointImage image(visit);
    auto const bytes = image.save(visit);
    CheckpointFile const file({bytes.begin(), bytes.end()}, "weights.h5");
    SmallRun other(2);
    std::vector<float> const statistics(other.state.tensors.statistics.begin(),
                                        other.state.tensors.statistics.end());
    load_weights(file, other.small.network.layout, other.state.tensors);
    EXPECT_TRUE(equal_bytes(other.state.tensors.parameters, run.state.tensors.parameters));
    EXPECT_TRUE(equal_bytes(other.state.tensors.statistics, statistics));
}

TEST(LoadWeights, RefusesAFileThatLacksATensor) {
    SmallRun run(1);
    for (std::string const path : {"/model/fc.weight", "/buffers/layer4.1.bn2.running_mean"}) {
        SmallRun other(2);
        std::vector<float> const before = other.small.memory;
        CheckpointFile const file(saved_without(run, path), "cut.h5");
        expect_error([&] { load_weights(file, other.small.network.layout, other.state.tensors); },
                     {"missing", path});
        EXPECT_TRUE(equal_bytes(other.small.memory, before)) << path;
    }
}

}  // namespace
}  // namespace holdfast::train
