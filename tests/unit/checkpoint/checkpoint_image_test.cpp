// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_image.hpp"

#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "small_state.hpp"
#include "support/checkpoint_trailer.hpp"

namespace holdfast::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Call>
std::string message_of(Call&& call) {
    try {
        call();
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue) << error.what();
        return error.what();
    }
    return "";
}

SmallState another_state() {
    SmallState state;
    state.weight.assign(6, 0.0f);
    state.momentum.assign(6, 0.0f);
    state.running_mean.assign(2, 0.0f);
    state.num_batches_tracked = state.epoch = state.step = 0;
    state.loss_sum = 0;
    state.epoch_loss.assign(2, 0.0);
    state.settings = "a much longer text than the one in the file";
    return state;
}

TEST(CheckpointImage, LoadReturnsWhatWasSaved) {
    SmallState saved;
    CheckpointFile const file(saved.file(), "c.h5");
    SmallState loaded = another_state();
    file.load(loaded.visitor());
    EXPECT_EQ(loaded, saved);
    EXPECT_EQ(file.integer("/progress/step"), 42);
    EXPECT_EQ(file.number("/progress/loss_sum"), 2.5);
    EXPECT_EQ(file.text("/settings/json"), saved.settings);
    EXPECT_TRUE(file.has("/momentum/conv1.weight"));
    EXPECT_EQ(file.datasets().size(), 9u);
    EXPECT_EQ(file.read("/model/conv1.weight").size(), 24u);
}

TEST(CheckpointImage, EverySaveHoldsTheValuesOfItsMoment) {
    SmallState state;
    CheckpointImage image(state.visitor());
    for (std::int64_t step = 0; step < 5; ++step) {
        state.step = step;
        state.weight[3] += 1.0f;
        if (step == 2) state.settings += " and more";  // another length: the structure is built again
        if (step == 3) state.epoch_loss.resize(20, 0.5);
        auto const bytes = image.save(state.visitor());
        SmallState loaded;
        loaded.epoch_loss.resize(state.epoch_loss.size());
        CheckpointFile({bytes.begin(), bytes.end()}, "c.h5").load(loaded.visitor());
        EXPECT_EQ(loaded, state) << step;
        CheckpointFile const file({bytes.begin(), bytes.end()}, "c.h5");
        EXPECT_EQ(image.parameters_digest(), file.parameters_digest()) << step;
        EXPECT_EQ(file_digest(bytes), file.file_digest()) << step;
    }
    auto const kept = image.save(state.visitor());
    EXPECT_EQ(std::vector<std::byte>(kept.begin(), kept.end()), state.file())
        << "the bytes depend on the state alone";
}

TEST(CheckpointImage, FindsTheFieldThatIsNotFinite) {
    std::vector<float> good(7, -3.0e38f), suspect(7, 1.0e-45f);
    auto const visit = [&](StateArchive& archive) {
        archive.field("/model/good", std::span(good), {7});
        archive.field("/model/suspect", std::span(suspect), {7});
    };
    CheckpointImage image(visit);
    image.copy(visit);
    EXPECT_EQ(image.find_not_finite(), "");
    for (float const value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()})
        for (float& place : suspect) {
            place = value;
            image.copy(visit);
            EXPECT_EQ(image.find_not_finite(), "/model/suspect");
            place = 0;
        }
}

TEST(CheckpointImage, FieldDeclaredTwiceIsOurBug) {
    std::int64_t value = 0;
    try {
        CheckpointImage const image([&](StateArchive& archive) {
            archive.field("/a", value);
            archive.field("/a", value);
        });
        FAIL();
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::internal_error);
        EXPECT_THAT(error.what(), HasSubstr("/a"));
    }
}

TEST(CheckpointFile, DetectsEveryTruncationAndEveryFlippedBit) {
    SmallState state;
    std::vector<std::byte> const good = state.file();
    for (std::size_t size = 0; size < good.size(); ++size) {
        std::vector<std::byte> const cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
        ASSERT_THAT(message_of([&] { CheckpointFile(cut, "c.h5"); }),
                    HasSubstr("c.h5: not a complete checkpoint"))
            << size;
    }
    for (std::size_t i = 0; i < good.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            std::vector<std::byte> flipped = good;
            flipped[i] ^= static_cast<std::byte>(1 << bit);
            ASSERT_THAT(message_of([&] { CheckpointFile(flipped, "c.h5"); }), HasSubstr("c.h5: ")) << i;
        }
    }
    std::vector<std::byte> longer = good;
    longer.push_back(std::byte{0});
    EXPECT_NE(message_of([&] { CheckpointFile(longer, "c.h5"); }), "");
    std::vector<std::byte> doubled = good;
    doubled.insert(doubled.end(), good.begin(), good.end());
    EXPECT_NE(message_of([&] { CheckpointFile(doubled, "c.h5"); }), "");
}

TEST(CheckpointFile, AnotherFormatIsNotDamage) {
    SmallState state;
    std::vector<std::byte> file = state.file();
    for (auto const& [version, word] : {std::pair{2, "older"}, std::pair{4, "newer"}}) {
        file[file.size() - 64 + 8] = std::byte(version);
        EXPECT_THAT(message_of([&] { CheckpointFile(file, "c.h5"); }), HasSubstr("damaged"));
        test::recompute_digest(file);
        EXPECT_THROW(CheckpointFile(file, "c.h5"), OtherFormatError);
        EXPECT_THAT(message_of([&] { CheckpointFile(file, "c.h5"); }), HasSubstr(word));
        file = state.file();
    }
}

TEST(CheckpointFile, RightDigestDoesNotExcuseABadContent) {
    std::vector<std::byte> file(1000);
    std::memcpy(file.data() + 936, "HOLDFAST\3", 9);
    std::uint64_t const length = 936;
    std::memcpy(file.data() + 936 + 16, &length, 8);
    test::recompute_digest(file);
    EXPECT_THAT(message_of([&] { CheckpointFile(file, "c.h5"); }), HasSubstr("not an HDF5 file"));
    file[936 + 16] = std::byte{1};  // a length that is not the file's
    test::recompute_digest(file);
    EXPECT_THAT(message_of([&] { CheckpointFile(file, "c.h5"); }), HasSubstr("contradicts"));
}

TEST(CheckpointFile, NamesAllMissingExtraAndMisshapedFieldsAtOnceAndLoadsNothing) {
    SmallState state;
    CheckpointFile const file(state.file(), "c.h5");
    std::vector<float> weight(6, 9.0f), fc(4, 9.0f);
    double epoch = 9, step = 9;
    std::string message = message_of([&] {
        file.load([&](StateArchive& archive) {
            archive.field("/model/conv1.weight", std::span(weight), {3, 2});
            archive.field("/model/fc.weight", std::span(fc), {4});
            archive.field("/model/fc.bias", std::span(fc), {4});
            archive.field("/progress/epoch", epoch);
            archive.field("/progress/step", step);
        });
    });
    EXPECT_THAT(
        message,
        AllOf(HasSubstr("c.h5"), HasSubstr("missing: /model/fc.weight, /model/fc.bias"),
              HasSubstr("extra: /buffers/bn1.num_batches_tracked, /buffers/bn1.running_mean, /history/loss"),
              HasSubstr("/model/conv1.weight (is f32 [2, 3], needed f32 [3, 2])"),
              HasSubstr("/progress/epoch (is i64 [], needed f64 [])")));
    EXPECT_EQ(weight, std::vector<float>(6, 9.0f));
    EXPECT_EQ(step, 9);
}

TEST(CheckpointFile, LoadsOneGroupWithoutMindingTheOthers) {
    SmallState state;
    CheckpointFile const file(state.file(), "c.h5");
    std::vector<float> weight(6);
    auto const visit = [&](StateArchive& archive) {
        archive.field("/model/conv1.weight", std::span(weight), {2, 3});
    };
    file.load(visit, {parameters_group});
    EXPECT_EQ(weight, state.weight);
    EXPECT_THAT(message_of([&] {
                    file.load(visit, {parameters_group, buffers_group});
                }),
                AllOf(HasSubstr("/buffers/bn1.running_mean"), Not(HasSubstr("/progress"))));
}

TEST(CheckpointFile, PlainHdf5IsReadOnlyWhereAskedFor) {
    hdf5::ImageBuilder builder;
    std::vector<float> const weight{1, 2};
    builder.write({"/model/w", hdf5::ElementType::f32, {2}}, std::as_bytes(std::span(weight)));
    std::vector<std::byte> const plain = builder.finish().bytes;
    EXPECT_NE(message_of([&] { CheckpointFile(plain, "w.h5"); }), "");
    CheckpointFile const file(plain, "w.h5", Trailer::optional);
    EXPECT_EQ(file.read("/model/w").size(), 8u);

    std::vector<std::byte> damaged = SmallState().file();  // with a trailer, the trailer counts
    damaged[damaged.size() / 2] ^= std::byte{1};
    EXPECT_THAT(message_of([&] { CheckpointFile(damaged, "c.h5", Trailer::optional); }),
                HasSubstr("damaged"));
}

TEST(StateDigest, DependsOnTheStateAndNotOnOrderOrHistory) {
    SmallState state;
    Digest const original = state_digest(state.visitor());
    CheckpointFile const file(state.file(), "c.h5");
    EXPECT_EQ(file.state_digest(), original);
    EXPECT_EQ(file.parameters_digest(), parameters_digest(state.visitor()));
    EXPECT_NE(file.parameters_digest(), original);

    auto const other_order = [&](StateArchive& archive) {
        archive.field("/progress/step", state.step);
        archive.field("/progress/loss_sum", state.loss_sum);
        archive.field("/progress/epoch", state.epoch);
        archive.field("/momentum/conv1.weight", std::span(state.momentum), {2, 3});
        archive.field("/model/conv1.weight", std::span(state.weight), {2, 3});
        archive.field("/buffers/bn1.num_batches_tracked", state.num_batches_tracked);
        archive.field("/buffers/bn1.running_mean", std::span(state.running_mean), {2});
    };
    EXPECT_EQ(state_digest(other_order), original);

    SmallState changed = state;
    changed.settings = "other";
    changed.epoch_loss = {1.0};
    EXPECT_EQ(state_digest(changed.visitor()), original);
    changed = state;
    changed.step = 43;
    EXPECT_NE(state_digest(changed.visitor()), original);
    EXPECT_EQ(parameters_digest(changed.visitor()), parameters_digest(state.visitor()));
    changed = state;
    changed.momentum[2] = -0.0f;  // equal as a number, other bits
    EXPECT_NE(state_digest(changed.visitor()), original);
    changed = state;
    std::swap(changed.weight, changed.momentum);
    EXPECT_NE(state_digest(changed.visitor()), original);
    auto const other_shape = [&](StateArchive& archive) {
        archive.field("/model/conv1.weight", std::span(state.weight), {3, 2});
    };
    EXPECT_NE(parameters_digest(other_shape), parameters_digest(state.visitor()));
}

}  // namespace
}  // namespace holdfast::checkpoint
