// SPDX-License-Identifier: Apache-2.0
// The settings of a run: fixed at its first start, stored in every checkpoint, inherited by every later launch. One table
// (for_each_setting) says of each whether it decides the result, is a limit that may be moved, or is free.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/exit_code.hpp"

namespace holdfast::train {

enum class SettingKind {
    result,  ///< decides the bits: another explicit value at resume is refused
    limit,   ///< ends the run: may be raised by a later launch
    free,    ///< another value gives the same result
};

struct Settings {
    std::string recipe = "tutorial";  ///< whose values the others had by default: "tutorial" or "strong"
    std::int64_t replicas = 0;        ///< V; 0 until decided: the number of ranks of the first launch
    std::int64_t batch_size =
        128;  ///< per replica. Source of this and the defaults below: the tutorial recipe
    std::int64_t epochs = 15;
    std::int64_t max_steps = -1;  ///< -1: no limit
    std::int64_t seed = 0;
    std::int64_t threads = 0;  ///< OpenMP threads per replica; 0 until decided: cores / replicas of a host
    std::string device = "auto";
    std::string model = "resnet34";
    std::int64_t width = 64;
    std::string augment = "none";  ///< or "crop-flip"
    double label_smoothing = 0;
    double lr = 0.1;  ///< the highest of the schedule
    double momentum = 0.9;
    bool nesterov = false;
    double weight_decay = 0;           ///< of all parameters but BatchNorm's and biases
    std::string lr_schedule = "step";  ///< or "cosine" or "one-cycle", which end with the last epoch
    std::int64_t lr_step_size = 5;     ///< epochs
    double lr_gamma = 0.1;
    std::int64_t warmup_epochs = 0;
    double ema_decay = 0;  ///< of the moving average that is evaluated; 0: none is kept
    std::string reduction = "exact";
    std::string precision = "fp32";
    std::string tail = "exact";
    std::string data = "sample";
    std::int64_t limit_train = 0;  ///< 0: all
    std::int64_t limit_test = 0;
    std::int64_t eval_batch_size = 128;
    std::string data_digest;  ///< of decoded pixels and labels, train and test
    std::string init_digest;  ///< of the parameters given by --init-from; empty: drawn from the seed
};

/// Calls `visit(name, kind, member)` for every setting; the name is the flag without its dashes.
template <typename SettingsType, typename Visitor>
void for_each_setting(SettingsType& settings, Visitor&& visit) {
    using enum SettingKind;
    visit("recipe", result, settings.recipe);
    visit("replicas", result, settings.replicas);
    visit("batch-size", result, settings.batch_size);
    visit("epochs", limit, settings.epochs);
    visit("max-steps", limit, settings.max_steps);
    visit("seed", result, settings.seed);
    visit("threads", result, settings.threads);
    visit("device", result, settings.device);
    visit("model", result, settings.model);
    visit("width", result, settings.width);
    visit("augment", result, settings.augment);
    visit("label-smoothing", result, settings.label_smoothing);
    visit("lr", result, settings.lr);
    visit("momentum", result, settings.momentum);
    visit("nesterov", result, settings.nesterov);
    visit("weight-decay", result, settings.weight_decay);
    visit("lr-schedule", result, settings.lr_schedule);
    visit("lr-step-size", result, settings.lr_step_size);
    visit("lr-gamma", result, settings.lr_gamma);
    visit("warmup-epochs", result, settings.warmup_epochs);
    visit("ema-decay", result, settings.ema_decay);
    visit("reduction", result, settings.reduction);
    visit("precision", result, settings.precision);
    visit("tail", result, settings.tail);
    visit("data", free, settings.data);
    visit("limit-train", result, settings.limit_train);
    visit("limit-test", result, settings.limit_test);
    visit("eval-batch-size", result, settings.eval_batch_size);
    visit("data-digest", result, settings.data_digest);
    visit("init-digest", result, settings.init_digest);
}

/// Throws Error with `code` if the settings ask for what only GPUs can.
void require_possible_on_cpus(Settings const& settings, ExitCode code);

/// Whether more epochs would have had other learning rates from the start: then they decide the result.
bool schedule_ends_with_run(Settings const& settings);

/// `given`, but with the values of its recipe for what was not given explicitly (docs/recipes.md). The recipe's name is not checked.
Settings with_recipe(Settings const& given, std::set<std::string> const& explicitly_given);

/// Rank 0's device in log lines, in the tutorial's form: "CPU0" or "GPU0".
std::string log_device(Settings const& settings);

/// Throws Error(usage) with every value that is out of its range.
void check_ranges(Settings const& settings);

/// As one JSON object, keys in the order of the table.
std::string to_json(Settings const& settings);
/// Throws Error(do_not_requeue), naming `source`, for anything but a complete set of settings.
Settings settings_from_json(std::string const& text, std::string const& source);

/// The settings of a launch that goes on with a run: those stored, but for what was given explicitly (flag, environment or
/// file) and may change. Throws Error(do_not_requeue) with both values of every setting that may not.
Settings resume_settings(Settings const& stored, Settings const& given,
                         std::set<std::string> const& explicitly_given);

/// Differences as "name: a here, b there", for messages; empty if equal.
std::vector<std::string> differences(Settings const& a, Settings const& b,
                                     std::set<std::string> const& names);

}  // namespace holdfast::train
