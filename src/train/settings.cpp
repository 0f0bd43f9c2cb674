// SPDX-License-Identifier: Apache-2.0
#include "train/settings.hpp"

#include <cmath>
#include <limits>
#include <map>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace holdfast::train {
namespace {

using Json = nlohmann::ordered_json;

std::map<std::string, std::string> texts_of(Settings const& settings) {
    std::map<std::string, std::string> texts;
    for_each_setting(settings, [&](char const* name, SettingKind, auto const& value) {
        texts[name] = fmt::format("{}", value);
    });
    return texts;
}

}  // namespace

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
    auto const finite = [&](char const* name, double value, double minimum) {
        if (!std::isfinite(value) || value < minimum)
            problems.push_back(
                fmt::format("--{} is {}, must be a number of at least {}", name, value, minimum));
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
    finite("lr", settings.lr, 0);
    finite("momentum", settings.momentum, 0);
    finite("lr-gamma", settings.lr_gamma, 0);
    one_of("device", settings.device, {"auto", "cpu", "cuda"});
    one_of("model", settings.model, {"resnet18", "resnet34"});
    one_of("reduction", settings.reduction, {"exact", "fast"});
    one_of("precision", settings.precision, {"fp32", "tf32", "bf16"});
    one_of("tail", settings.tail, {"exact", "pad"});
    // Settings are stored as JSON, which is UTF-8.
    try {
        Json(settings.data).dump();
    } catch (Json::type_error const&) {
        problems.push_back(fmt::format("--data is '{}', must be UTF-8", settings.data));
    }
    // The engine of the epoch order takes 32 bits, as torch's CPU generator does.
    if (settings.seed > std::numeric_limits<std::uint32_t>::max() - settings.epochs)
        problems.push_back(fmt::format("--seed is {}, seed + epochs must fit 32 bits", settings.seed));
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
    std::map<std::string, bool> may_change;
    for_each_setting(stored, [&](char const* name, SettingKind kind, auto const&) {
        may_change[name] = kind != SettingKind::result;
        if (kind == SettingKind::result && explicitly_given.contains(name)) fixed.insert(name);
    });
    std::vector<std::string> const conflicts = differences(stored, given, fixed);
    require(conflicts.empty(), ExitCode::do_not_requeue,
            "the run directory holds a run with other settings: {} (they decide the result, so a run keeps "
            "them); leave the "
            "flags away to go on, or start a new run with another --run",
            fmt::join(conflicts, "; "));
    Json json = Json::parse(to_json(stored));
    Json const wanted = Json::parse(to_json(given));
    for (std::string const& name : explicitly_given)
        if (may_change.contains(name) && may_change.at(name)) json[name] = wanted[name];
    return settings_from_json(json.dump(), "settings");
}

}  // namespace holdfast::train
