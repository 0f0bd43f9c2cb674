// SPDX-License-Identifier: Apache-2.0
// The flags of holdfast train.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>

#include "commands/command_line.hpp"
#include "commands/commands.hpp"
#include "commands/settings_flags.hpp"
#include "commands/train.hpp"
#include "core/error.hpp"

namespace holdfast::commands {
namespace {

std::map<std::string, report::ProgressMode> const progress_modes{{"auto", report::ProgressMode::automatic},
                                                                 {"always", report::ProgressMode::always},
                                                                 {"never", report::ProgressMode::never}};

/// When this launch must be over, in seconds since 1970: by the flag, or by what the job's script or SLURM says.
std::optional<double> end_time_s(double stop_after_minutes) {
    std::optional<double> end;
    for (char const* const name : {"HOLDFAST_END_TIME", "SLURM_JOB_END_TIME"}) {
        char const* const text = std::getenv(name);
        if (text == nullptr || *text == '\0') continue;
        char* rest = nullptr;
        end = std::strtod(text, &rest);
        require(*rest == '\0' && *end > 0, ExitCode::usage, "{}={}: not a time in seconds since 1970", name,
                text);
        break;
    }
    if (stop_after_minutes > 0) {
        std::chrono::duration<double> const now = std::chrono::system_clock::now().time_since_epoch();
        double const own_end = now.count() + 60 * stop_after_minutes;
        end = std::min(end.value_or(own_end), own_end);
    }
    return end;
}

}  // namespace

Action add_train(CLI::App& app) {
    auto const options = std::make_shared<TrainOptions>();
    CLI::App* const command = app.add_subcommand("train", "Train a network, or go on with a run");
    train::Settings& settings = options->settings;
    command
        ->add_option("--data", settings.data, "CIFAR-10 folder, packed .h5 file, 'sample' or 'synthetic[:N]'")
        ->type_name("DATA")
        ->capture_default_str();
    command->add_option("--run", options->run, "Run directory: checkpoints, metrics, log")
        ->type_name("DIR")
        ->capture_default_str();
    command->add_option("--epochs", settings.epochs, "Epochs of the run as a whole")->capture_default_str();
    command->add_option("--max-steps", settings.max_steps, "Steps of the run as a whole (default: no limit)");
    add_model_flags(*command, settings);
    command
        ->add_option("--lr-schedule", settings.lr_schedule,
                     "Learning rate: decays in steps, or follows a cosine or one cycle that end with the run")
        ->type_name("step|cosine|one-cycle")
        ->capture_default_str();
    command->add_option("--lr-step-size", settings.lr_step_size, "Epochs between decays of the step schedule")
        ->capture_default_str();
    command->add_option("--lr-gamma", settings.lr_gamma, "Factor of such a decay")->capture_default_str();
    command->add_option("--warmup-epochs", settings.warmup_epochs, "Epochs in which the learning rate rises")
        ->capture_default_str();
    command
        ->add_option("--tail", settings.tail,
                     "Last batch: exact (each sample once) or pad (as DistributedSampler)")
        ->type_name("exact|pad")
        ->capture_default_str();
    command
        ->add_option("--limit-train", settings.limit_train, "Use only the first N training images (0: all)")
        ->capture_default_str();
    command->add_option("--limit-test", settings.limit_test, "Use only the first N test images (0: all)")
        ->capture_default_str();
    command->add_option("--eval-batch-size", settings.eval_batch_size, "Samples per evaluation batch")
        ->capture_default_str();
    train::SaveEvery& save_every = options->launch.save_every;
    command
        ->add_option("--save-every-epochs", save_every.epochs,
                     "Checkpoint every N epochs (0: only at the end; without any --save-every-*: as often as "
                     "costs at most 1 % of the time)")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--save-every-steps", save_every.steps, "Checkpoint every N steps (0: no)")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--save-every-minutes", save_every.minutes, "Checkpoint every N minutes (0: no)")
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option("--stop-after-minutes", options->stop_after_minutes,
                     "Save and stop (exit 75) before this launch is N minutes old (0: no limit)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option("--check-replicas-every", options->launch.check_replicas_every,
                     "Compare all ranks' state and data every N steps and before saving (0: no)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option(
            "--no-progress-limit", options->no_progress_limit,
            "Launches in a row that may end by an error without a new checkpoint (0: any number); then 93")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command
        ->add_option(
            "--digest-every", options->launch.digest_every_steps,
            "Record the parameters' digest in the ledger every N steps, for 'holdfast replay' (0: no)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command->add_option("--keep", options->keep, "Newest checkpoints to keep, at least 2")
        ->capture_default_str()
        ->check(CLI::Range(2, 1000000));
    command
        ->add_option("--watchdog-seconds", options->watchdog_seconds,
                     "End with 75 where nothing gets on for N seconds, or 20 steps if longer (0: never)")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command->add_option("--resume", options->resume, "auto, never, or a checkpoint FILE")
        ->type_name("auto|never|FILE")
        ->capture_default_str();
    command
        ->add_option("--init-from", options->init_from,
                     "First weights from a checkpoint or HDF5 file with /model")
        ->type_name("FILE");
    command
        ->add_option("--log-indices", options->launch.log_indices,
                     "Write the sample numbers of every step and replica to FILE")
        ->type_name("FILE");
    add_cuda_graph_flag(*command, options->cuda_graphs);
    command->add_option("--progress", options->progress, "Progress bar: auto, always or never")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "always", "never"}));
    command->add_flag("--allow-platform-change", options->allow_platform_change,
                      "Go on where the machine computes other bits");
    command->add_flag("--doctor", options->doctor,
                      "First 'holdfast doctor'; train only if it finds no error");
    command->add_flag("--dry-run", options->dry_run, "Check everything, write nothing");
    command->add_flag("--print-config", options->print_config, "Print all flags as a --config file and exit");
    return [command, options](Arguments& arguments) {
        options->explicitly_given = explicitly_given(*command);
        apply_recipe(*command, options->settings);
        if (options->settings.device == "auto") options->explicitly_given.erase("device");
        options->command_text = config_text(*command);
        options->launch.end_time_s = end_time_s(options->stop_after_minutes);
        options->launch.progress = progress_modes.at(options->progress);
        if (options->print_config) {
            std::cout << options->command_text;
            return ExitCode::finished;
        }
        return run_train(*options, arguments);
    };
}

}  // namespace holdfast::commands
