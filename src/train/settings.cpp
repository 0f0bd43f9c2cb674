// SPDX-License-Identifier: Apache-2.0
#include "train/settings.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <type_traits>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace holdfast::train {
namespace {

using Json = nlohmann::ordered_json;

/// What the strong recipe has otherwise than the tutorial. Sources: docs/recipes.md.
Settings strong_recipe() {
    Settings settings;
    settings.recipe = "strong";
    settings.replicas = 4;  // the learning rate is for a global batch of 512, on however many ranks
    settings.batch_size = 128;
    settings.epochs = 15;
    settings.augment = "crop-flip";
    settings.label_smoothing = 0.1;
    settings.lr = 0.2;
    settings.momentum = 0.9;
    settings.nesterov = true;
    settings.weight_decay = 5e-4;
    settings.lr_schedule = "one-cycle";
    settings.warmup_epochs = 3;
    settings.ema_decay = 0.99;
    return settings;
}

/// `base` with the values that `given` has for these names; other names do not matter.
Settings with_values_of(Settings const& base, Settings const& given, std::set<std::string> const& names) {
    Settings result = base;
    for_each_setting(result, [&](std::string const& name, SettingKind, auto& value) {
        if (!names.contains(name)) return;
        for_each_setting(given, [&](std::string const& its_name, SettingKind, auto const& its_value) {
            if constexpr (std::is_same_v<decltype(its_value),
                                         std::remove_reference_t<decltype(value)> const&>)
                if (its_name == name) value = its_value;
        });
    });
    return result;
}

std::map<std::string, std::string> texts_of(Settings const& settings) {
    std::map<std::string, std::string> texts;
    for_each_setting(settings, [&](char const* name, SettingKind, auto const& value) {
        texts[name] = fmt::format("{}", value);
    });
    return texts;
}

}  // namespace

bool schedule_ends_with_run(Settings const& settings) { return settings.lr_schedule != "step"; }

Settings with_recipe(Settings const& given, std::set<std::string> const& explicitly_given) {
    Settings const recipe = given.recipe == "strong" ? strong_recipe() : Settings{};
    return with_values_of(recipe, given, explicitly_given);
}

std::string log_device(Settings const& settings) { return settings.device == "cuda" ? "GPU0" : "CPU0"; }

void check_ranges(Settings const& settings) {
    std::vector<std::string> problems;
    auto const at_least = [&](char const* name, std::int64_t value, std::int64_t minimum) {
        if (value < minimum)
            problems.push_back(fmt::format("--{} is {}, must be at least {}", name, value, minimum));
    };
    auto const in_range = [&](char const* name, std::int64_t value, std::int64_t minimum,
                              std::int64_t maximum) {
        at_least(name, value, minimum);
        if (value > maximum)
            problems.push_back(fmt::format("--{} is {}, must be at most {}", name, value, maximum));
    };
    auto const one_of = [&](char const* name, std::string const& value,
                            std::vector<std::string> const& allowed) {
        for (std::string const& candidate : allowed)
            if (value == candidate) return;
        problems.push_back(
            fmt::format("--{} is '{}', must be one of {}", name, value, fmt::join(allowed, ", ")));
    };
    auto const not_negative = [&](char const* name, double value) {
        if (!std::isfinite(value) || value < 0)
            problems.push_back(fmt::format("--{} is {}, must be a number of at least 0", name, value));
    };
    auto const share = [&](char const* name, double value) {
        if (!(0 <= value && value < 1))
            problems.push_back(fmt::format("--{} is {}, must be at least 0 and less than 1", name, value));
    };
    // The upper limits are far beyond what anyone trains; below them no count overflows.
    in_range("replicas", settings.replicas, 0, 1'000'000);
    in_range("batch-size", settings.batch_size, 1, 1'000'000'000);
    at_least("epochs", settings.epochs, 0);
    at_least("max-steps", settings.max_steps, -1);
    at_least("seed", settings.seed, 0);
    in_range("threads", settings.threads, 0, 1024);
    in_range("width", settings.width, 1, 1'000'000);
    at_least("lr-step-size", settings.lr_step_size, 1);
    at_least("limit-train", settings.limit_train, 0);
    at_least("limit-test", settings.limit_test, 0);
    in_range("eval-batch-size", settings.eval_batch_size, 1, 1'000'000'000);
    at_least("warmup-epochs", settings.warmup_epochs, 0);
    not_negative("lr", settings.lr);
    not_negative("momentum", settings.momentum);
    not_negative("weight-decay", settings.weight_decay);
    not_negative("lr-gamma", settings.lr_gamma);
    share("label-smoothing", settings.label_smoothing);
    share("ema-decay", settings.ema_decay);
    one_of("recipe", settings.recipe, {"tutorial", "strong"});
    one_of("augment", settings.augment, {"none", "crop-flip"});
    one_of("lr-schedule", settings.lr_schedule, {"step", "cosine", "one-cycle"});
    one_of("device", settings.device, {"auto", "cpu", "cuda"});
    one_of("model", settings.model, {"resnet18", "resnet34"});
    one_of("reduction", settings.reduction, {"exact", "fast"});
    one_of("precision", settings.precision, {"fp32", "tf32", "bf16"});
    one_of("tail", settings.tail, {"exact", "pad"});
    if (schedule_ends_with_run(settings) && settings.warmup_epochs > settings.epochs)
        problems.push_back(
            fmt::format("--warmup-epochs is {}, must be at most --epochs, {} (the {} schedule ends there)",
                        settings.warmup_epochs, settings.epochs, settings.lr_schedule));
    if (settings.nesterov && settings.momentum == 0)
        problems.push_back("--nesterov true needs a --momentum (it looks ahead along it)");
    // Settings are stored as JSON, which is UTF-8.
    try {
        Json(settings.data).dump();
    } catch (Json::type_error const&) {
        problems.push_back(fmt::format("--data is '{}', must be UTF-8", settings.data));
    }
    // The engine of the epoch order takes 32 bits, as torch's CPU generator does.
    if (settings.seed > std::numeric_limits<std::uint32_t>::max() - settings.epochs)
        problems.push_back(
            fmt::format("--seed is {} and --epochs {}, their sum must fit 32 bits (at most {})",
                        settings.seed, settings.epochs, std::numeric_limits<std::uint32_t>::max()));
    require(problems.empty(), ExitCode::usage, "{}", fmt::join(problems, "; "));
    if (settings.device == "cpu") require_possible_on_cpus(settings, ExitCode::usage);
}

void require_possible_on_cpus(Settings const& settings, ExitCode code) {
    require(settings.reduction != "fast", code,
            "--reduction fast is for GPUs, and this run is on CPUs (there exact is the faster one); leave it "
            "away");
    require(settings.precision == "fp32", code,
            "--precision {} is for GPUs, and this run is on CPUs (there fp32 is the faster one); leave it "
            "away",
            settings.precision);
}

std::string to_json(Settings const& settings) {
    Json json;
    for_each_setting(settings, [&](char const* name, SettingKind, auto const& value) { json[name] = value; });
    return json.dump(2);
}

Settings settings_from_json(std::string const& text, std::string const& source) {
    Settings settings;
    try {
        Json const json = Json::parse(text);
        for_each_setting(settings,
                         [&](char const* name, SettingKind, auto& value) { json.at(name).get_to(value); });
    } catch (nlohmann::json::exception const& error) {
        fail(ExitCode::do_not_requeue,
             "{}: its settings cannot be read ({}); was it written by another program?", source,
             error.what());
    }
    return settings;
}

std::vector<std::string> differences(Settings const& a, Settings const& b,
                                     std::set<std::string> const& names) {
    std::map<std::string, std::string> const texts_a = texts_of(a);
    std::map<std::string, std::string> const texts_b = texts_of(b);
    std::vector<std::string> found;
    for (std::string const& name : names)
        if (texts_a.at(name) != texts_b.at(name))
            found.push_back(
                fmt::format("{} is {} there and {} here", name, texts_a.at(name), texts_b.at(name)));
    return found;
}

Settings resume_settings(Settings const& stored, Settings const& given,
                         std::set<std::string> const& explicitly_given) {
    std::set<std::string> fixed;
    std::set<std::string> movable;
    for_each_setting(stored, [&](char const* name, SettingKind kind, auto const&) {
        if (explicitly_given.contains(name)) (kind == SettingKind::result ? fixed : movable).insert(name);
    });
    std::vector<std::string> const conflicts = differences(stored, given, fixed);
    require(
        conflicts.empty(), ExitCode::do_not_requeue,
        "the run has other settings: {} (they decide the result, so a run keeps them); leave the flags away "
        "to go on, or start a new run with another --run",
        fmt::join(conflicts, "; "));
    require(!schedule_ends_with_run(stored) || !movable.contains("epochs") || given.epochs == stored.epochs,
            ExitCode::do_not_requeue,
            "--epochs {}, but the run's are {} (its {} schedule spreads the learning rate over them, so all "
            "steps so far would have had other rates); leave --epochs away to go on, or start a new run with "
            "another --run",
            given.epochs, stored.epochs, stored.lr_schedule);
    return with_values_of(stored, given, movable);
}

}  // namespace holdfast::train
