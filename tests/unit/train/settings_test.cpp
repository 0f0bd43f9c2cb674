// SPDX-License-Identifier: Apache-2.0
#include "train/settings.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/expect_error.hpp"

namespace holdfast::train {
namespace {

using test::expect_error;

/// Every value another than the default.
Settings unusual_settings() {
    Settings settings;
    std::int64_t next = 3;
    for_each_setting(settings, [&](std::string const& name, SettingKind, auto& value) {
        if constexpr (std::is_same_v<decltype(value), std::int64_t&>)
            value = ++next;
        else if constexpr (std::is_same_v<decltype(value), double&>)
            value = 1.0 / static_cast<double>(++next);
        else if constexpr (std::is_same_v<decltype(value), bool&>)
            value = true;
        else
            value = name + " \"é\\\n";
    });
    return settings;
}

std::set<std::string> names_of(SettingKind kind) {
    std::set<std::string> names;
    Settings settings;
    for_each_setting(settings, [&](char const* name, SettingKind its_kind, auto&) {
        if (its_kind == kind) names.insert(name);
    });
    return names;
}

std::set<std::string> all_names() {
    std::set<std::string> names;
    for (SettingKind kind : {SettingKind::result, SettingKind::limit, SettingKind::free})
        names.merge(names_of(kind));
    return names;
}

TEST(Settings, EachIsOfTheKindThatTheDocumentationSays) {
    EXPECT_EQ(names_of(SettingKind::limit), (std::set<std::string>{"epochs", "max-steps"}));
    EXPECT_EQ(names_of(SettingKind::free), (std::set<std::string>{"data"}));
    EXPECT_EQ(all_names().size(), 30u);
}

TEST(Settings, ComeBackFromJsonToTheLastBit) {
    for (Settings const& settings : {Settings{}, unusual_settings()}) {
        Settings const back = settings_from_json(to_json(settings), "here");
        EXPECT_EQ(differences(settings, back, all_names()), std::vector<std::string>{});
        EXPECT_EQ(to_json(back), to_json(settings));
    }
    Settings settings;
    settings.lr = std::nextafter(0.1, 1.0);
    EXPECT_EQ(settings_from_json(to_json(settings), "here").lr, settings.lr);
}

TEST(Settings, JsonNamesTheFlagsInTheOrderOfTheTable) {
    nlohmann::ordered_json const json = nlohmann::ordered_json::parse(to_json(Settings{}));
    std::vector<std::string> expected;
    Settings settings;
    for_each_setting(settings, [&](char const* name, SettingKind, auto&) { expected.push_back(name); });
    std::vector<std::string> found;
    for (auto const& item : json.items()) found.push_back(item.key());
    EXPECT_EQ(found, expected);
    EXPECT_EQ(json.at("batch-size"), 128);
    EXPECT_EQ(json.at("model"), "resnet34");
}

TEST(SettingsFromJson, RefusesWhatIsIncompleteOrOfAnotherType) {
    for (std::string const& name : all_names()) {
        nlohmann::ordered_json json = nlohmann::ordered_json::parse(to_json(Settings{}));
        json.erase(name);
        expect_error([&] { settings_from_json(json.dump(), "run/config.json"); }, {"run/config.json", name});
        json[name] = nlohmann::json::array();
        expect_error([&] { settings_from_json(json.dump(), "run/config.json"); },
                     {"run/config.json", "array"});
    }
    for (char const* text : {"", "{", "[]", "null", "1", "not JSON", "{} {}"})
        expect_error([&] { settings_from_json(text, "run/config.json"); }, {"run/config.json"});
}

TEST(CheckRanges, AcceptsDefaultsAndEdges) {
    EXPECT_NO_THROW(check_ranges({}));
    Settings edges;
    edges.batch_size = edges.width = edges.lr_step_size = edges.eval_batch_size = 1;
    edges.epochs = 0;
    edges.max_steps = -1;
    edges.lr = edges.momentum = edges.lr_gamma = 0;
    edges.seed = std::numeric_limits<std::uint32_t>::max();
    edges.model = "resnet18";
    edges.device = "cuda";
    edges.reduction = "fast";
    edges.precision = "bf16";
    edges.tail = "pad";
    EXPECT_NO_THROW(check_ranges(edges));
}

TEST(CheckRanges, NamesTheFlagAndItsValue) {
    struct Case {
        std::function<void(Settings&)> spoil;
        std::initializer_list<std::string> pieces;
    };
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Case const cases[] = {
        {[](Settings& s) { s.replicas = -1; }, {"--replicas", "-1", "at least 0"}},
        {[](Settings& s) { s.batch_size = 0; }, {"--batch-size", "0", "at least 1"}},
        {[](Settings& s) { s.epochs = -2; }, {"--epochs", "-2"}},
        {[](Settings& s) { s.max_steps = -2; }, {"--max-steps", "-2", "at least -1"}},
        {[](Settings& s) { s.seed = -7; }, {"--seed", "-7"}},
        {[](Settings& s) { s.seed = std::int64_t{1} << 32; }, {"--seed", "4294967296", "32 bits"}},
        {[](Settings& s) { s.seed = std::numeric_limits<std::uint32_t>::max(); },
         {"--seed", "4294967295", "epochs"}},
        {[](Settings& s) { s.threads = -1; }, {"--threads", "-1"}},
        {[](Settings& s) { s.width = 0; }, {"--width", "0"}},
        {[](Settings& s) { s.replicas = 1'000'001; }, {"--replicas", "1000001", "at most 1000000"}},
        {[](Settings& s) { s.batch_size = std::numeric_limits<std::int64_t>::max(); },
         {"--batch-size", "at most"}},
        {[](Settings& s) { s.threads = 1025; }, {"--threads", "1025", "at most 1024"}},
        {[](Settings& s) { s.width = std::int64_t{1} << 32; }, {"--width", "4294967296", "at most 1000000"}},
        {[](Settings& s) { s.eval_batch_size = std::int64_t{1} << 40; }, {"--eval-batch-size", "at most"}},
        {[](Settings& s) { s.lr = -0.5; }, {"--lr", "-0.5"}},
        {[](Settings& s) { s.lr = nan; }, {"--lr", "nan"}},
        {[](Settings& s) { s.lr = infinity; }, {"--lr", "inf"}},
        {[](Settings& s) { s.momentum = nan; }, {"--momentum", "nan"}},
        {[](Settings& s) { s.lr_gamma = -infinity; }, {"--lr-gamma", "-inf"}},
        {[](Settings& s) { s.lr_step_size = 0; }, {"--lr-step-size", "0"}},
        {[](Settings& s) { s.recipe = "weak"; }, {"--recipe", "'weak'", "tutorial, strong"}},
        {[](Settings& s) { s.augment = "flip"; }, {"--augment", "'flip'", "none, crop-flip"}},
        {[](Settings& s) { s.lr_schedule = "linear"; }, {"--lr-schedule", "step, cosine, one-cycle"}},
        {[](Settings& s) { s.label_smoothing = 1; }, {"--label-smoothing", "1", "less than 1"}},
        {[](Settings& s) { s.label_smoothing = -0.1; }, {"--label-smoothing", "-0.1"}},
        {[](Settings& s) { s.ema_decay = 1; }, {"--ema-decay", "1", "less than 1"}},
        {[](Settings& s) { s.ema_decay = nan; }, {"--ema-decay", "nan"}},
        {[](Settings& s) { s.weight_decay = -1e-4; }, {"--weight-decay", "-0.0001"}},
        {[](Settings& s) { s.weight_decay = infinity; }, {"--weight-decay", "inf"}},
        {[](Settings& s) { s.warmup_epochs = -1; }, {"--warmup-epochs", "-1"}},
        {[](Settings& s) {
             s.lr_schedule = "cosine";
             s.warmup_epochs = 16;
         },
         {"--warmup-epochs", "16", "--epochs, 15", "cosine"}},
        {[](Settings& s) {
             s.nesterov = true;
             s.momentum = 0;
         },
         {"--nesterov", "--momentum"}},
        {[](Settings& s) { s.limit_train = -1; }, {"--limit-train", "-1"}},
        {[](Settings& s) { s.limit_test = -1; }, {"--limit-test", "-1"}},
        {[](Settings& s) { s.eval_batch_size = 0; }, {"--eval-batch-size", "0"}},
        {[](Settings& s) { s.device = "tpu"; }, {"--device", "'tpu'", "auto, cpu, cuda"}},
        {[](Settings& s) { s.model = "resnet50"; }, {"--model", "'resnet50'", "resnet18, resnet34"}},
        {[](Settings& s) { s.reduction = ""; }, {"--reduction", "''", "exact, fast"}},
        {[](Settings& s) { s.precision = "fp16"; }, {"--precision", "'fp16'", "fp32, tf32, bf16"}},
        {[](Settings& s) { s.tail = "drop"; }, {"--tail", "'drop'", "exact, pad"}},
        {[](Settings& s) { s.data = "/data/\xff.h5"; }, {"--data", "\xff.h5", "UTF-8"}},
    };
    for (Case const& one : cases) {
        Settings settings;
        one.spoil(settings);
        expect_error([&] { check_ranges(settings); }, one.pieces, ExitCode::usage);
    }
}

TEST(CheckRanges, FastReductionIsForGpus) {
    Settings settings;
    settings.reduction = "fast";
    EXPECT_NO_THROW(check_ranges(settings)) << "which device it will be is not decided yet";
    settings.device = "cpu";
    expect_error([&] { check_ranges(settings); }, {"--reduction fast", "GPUs"}, ExitCode::usage);
}

TEST(CheckRanges, LowerPrecisionIsForGpus) {
    for (char const* precision : {"tf32", "bf16"}) {
        Settings settings;
        settings.precision = precision;
        EXPECT_NO_THROW(check_ranges(settings)) << "which device it will be is not decided yet";
        settings.device = "cpu";
        expect_error([&] { check_ranges(settings); }, {"--precision", precision, "GPUs"}, ExitCode::usage);
    }
}

TEST(CheckRanges, TellsAllProblemsAtOnce) {
    Settings settings;
    settings.batch_size = 0;
    settings.lr = -1;
    settings.model = "vgg";
    expect_error([&] { check_ranges(settings); }, {"--batch-size", "--lr is", "--model"}, ExitCode::usage);
}

TEST(ResumeSettings, InheritsEverythingThatIsNotGiven) {
    Settings const stored = unusual_settings();
    EXPECT_EQ(to_json(resume_settings(stored, Settings{}, {})), to_json(stored));
}

TEST(ResumeSettings, RefusesAnotherResultWithBothValues) {
    Settings stored;
    Settings given;
    stored.lr = 0.125;
    given.lr = 0.25;
    stored.model = "resnet18";
    given.model = "resnet34";
    expect_error(
        [&] {
            resume_settings(stored, given, {"lr", "model"});
        },
        {"lr is 0.125 there and 0.25 here", "model is resnet18 there and resnet34 here", "--run"});
    for (std::string const& name : names_of(SettingKind::result))
        expect_error([&] { resume_settings(unusual_settings(), Settings{}, {name}); }, {name + " is "});
}

TEST(ResumeSettings, KeepsTheEpochsThatAScheduleEndsWith) {
    for (char const* const schedule : {"cosine", "one-cycle"}) {
        Settings stored;
        stored.lr_schedule = schedule;
        Settings given = stored;
        EXPECT_EQ(resume_settings(stored, given, {"epochs"}).epochs, 15);
        given.epochs = 30;
        given.max_steps = 7;
        expect_error([&] { resume_settings(stored, given, {"epochs"}); }, {"--epochs 30", "15", schedule});
        EXPECT_EQ(resume_settings(stored, given, {"max-steps"}).epochs, 15) << "30 was not given";
        EXPECT_EQ(resume_settings(stored, given, {"max-steps"}).max_steps, 7);
    }
}

TEST(ResumeSettings, ComparesOnlyWhatWasGiven) {
    Settings stored;
    Settings given;
    stored.lr = 0.125;
    given.lr = 0.25;
    EXPECT_EQ(resume_settings(stored, given, {"epochs", "seed"}).lr, 0.125);
}

TEST(ResumeSettings, AcceptsTheSameResult) {
    Settings const stored = unusual_settings();
    EXPECT_EQ(to_json(resume_settings(stored, stored, all_names())), to_json(stored));
}

TEST(ResumeSettings, MovesLimitsAndWhatIsFree) {
    Settings stored;
    Settings given;
    given.epochs = 99;
    given.max_steps = 1000;
    given.data = "/elsewhere";
    Settings const all = resume_settings(stored, given, {"epochs", "max-steps", "data"});
    EXPECT_EQ(all.epochs, 99);
    EXPECT_EQ(all.max_steps, 1000);
    EXPECT_EQ(all.data, "/elsewhere");
    Settings const none = resume_settings(stored, given, {});
    EXPECT_EQ(none.epochs, stored.epochs);
    EXPECT_EQ(none.max_steps, stored.max_steps);
    EXPECT_EQ(none.data, stored.data);
}

TEST(ResumeSettings, FlagsThatAreNoSettingsDoNotMatter) {
    EXPECT_NO_THROW(resume_settings({}, {}, {"run", "keep", "progress"}));
}

TEST(WithRecipe, FillsInWhatWasNotGiven) {
    Settings given;
    given.recipe = "strong";
    given.lr = 0.5;
    given.momentum = 0.5;
    given.data = "/data/\xff.h5";  // looked at later
    Settings const strong = with_recipe(given, {"recipe", "lr", "data", "run"});
    EXPECT_EQ(strong.recipe, "strong");
    EXPECT_EQ(strong.lr, 0.5);
    EXPECT_EQ(strong.data, given.data);
    EXPECT_EQ(strong.momentum, 0.9);
    EXPECT_EQ(strong.replicas * strong.batch_size, 512);
    EXPECT_EQ(strong.augment, "crop-flip");
    EXPECT_EQ(strong.lr_schedule, "one-cycle");
    EXPECT_TRUE(strong.nesterov);
    for (double const value : {strong.label_smoothing, strong.weight_decay, strong.ema_decay})
        EXPECT_GT(value, 0);
    EXPECT_NO_THROW(check_ranges(with_recipe(given, {"recipe"})));
}

TEST(WithRecipe, TheTutorialIsTheDefault) {
    EXPECT_EQ(to_json(with_recipe({}, {})), to_json({}));
    EXPECT_EQ(to_json(with_recipe(unusual_settings(), all_names())), to_json(unusual_settings()));
}

TEST(Differences, NameBothValues) {
    Settings a;
    Settings b;
    b.seed = 5;
    b.tail = "pad";
    EXPECT_THAT(differences(a, b, {"seed", "tail", "lr"}),
                testing::ElementsAre("seed is 0 there and 5 here", "tail is exact there and pad here"));
    EXPECT_THAT(differences(a, a, all_names()), testing::IsEmpty());
}

}  // namespace
}  // namespace holdfast::train
