// SPDX-License-Identifier: Apache-2.0
// holdfast eval: the accuracy of a checkpoint on the test set, exact for any number of ranks.
#include <iostream>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "commands/launch_device.hpp"
#include "commands/run_path.hpp"
#include "core/error.hpp"
#include "core/json_text.hpp"
#include "core/log.hpp"
#include "core/stop_request.hpp"
#include "parallel/launch_table.hpp"
#include "parallel/mpi_session.hpp"
#include "report/epoch_line.hpp"
#include "train/compute_thread.hpp"
#include "train/evaluate.hpp"
#include "train/training_engine.hpp"

namespace holdfast::commands {
namespace {

struct EvalOptions {
    std::string path;
    std::string data;
    std::int64_t limit_test = 0;
    std::int64_t batch_size = 0;
    std::int64_t threads = 0;
    std::string device = "auto";
    bool json = false;
};

ExitCode run_eval(EvalOptions const& options, Arguments& arguments) {
    train::keep_freed_memory();
    parallel::MpiSession const mpi(arguments.argc, arguments.argv);
    auto const world = parallel::Communicator::collective_world();
    log::set_rank(world.rank(), world.size(), world.host_name());

    std::optional<checkpoint::CheckpointFile> file;
    train::Settings settings;
    data::TrainAndTest sets;
    world.agree([&] {
        file.emplace(open_checkpoint(options.path));
        settings = train::settings_from_json(file->text("/settings/json"), file->name());
        if (!options.data.empty()) settings.data = options.data;
        sets = data::open_datasets(settings.data, 0,
                                   options.limit_test > 0 ? options.limit_test : settings.limit_test);
    });
    settings.replicas = world.size();  // only ranks matter here: each evaluates some of the batches
    settings.reduction = "exact";      // nothing is reduced
    settings.ema_decay = 0;            // nothing moves: averages are loaded as the weights
    settings.device = collective_resolve_device(world, options.device);
    if (settings.device == "cpu")
        settings.precision = "fp32";  // what was trained on a GPU can be looked at anywhere
    LaunchDevice const device = collective_start_device(world, settings);
    auto const table = parallel::collective_launch_table(world, device.description, world.size());
    settings.threads = options.threads > 0 ? options.threads : settings.threads;
    settings.eval_batch_size = options.batch_size > 0 ? options.batch_size : settings.eval_batch_size;

    train::TrainingEngine engine(world, settings, train::network_config(settings, *sets.test), table,
                                 device.compute);
    world.agree([&] {
        if (world.local_rank() == 0)
            train::load_evaluated_weights(*file, engine.network().layout, engine.tensors());
    });
    world.barrier();
    engine.training_step().load_state();
    std::unique_ptr<data::DeviceImages> images;
    world.agree(
        [&] { images = engine.make_device_images(*sets.test, {.max_samples = settings.eval_batch_size}); });
    auto const evaluated = train::collective_evaluate(
        world, engine.slots(), *sets.test, data::cifar10_normalization(), settings.eval_batch_size,
        [] { return stop_signal() != 0; }, images.get());
    if (!evaluated) {
        log::info("Asked to stop; nothing was evaluated.");
        world.barrier();
        return ExitCode::retry;
    }
    train::EvaluationSums const& sums = *evaluated;
    if (world.rank() == 0) {
        double const loss = sums.loss / static_cast<double>(sums.count);
        if (options.json)
            std::cout << json_text(nlohmann::ordered_json{
                             {"file", file->name()},
                             {"step", file->integer(checkpoint::step_path)},
                             {"test_loss", loss},
                             {"test_correct", sums.correct},
                             {"test_count", sums.count},
                             {"test_accuracy",
                              static_cast<double>(sums.correct) / static_cast<double>(sums.count)}})
                      << '\n';
        else
            log::info("{}: test loss {:.4f}\n{}", file->name(), loss,
                      report::test_line(train::log_device(settings),
                                        static_cast<double>(sums.correct) / static_cast<double>(sums.count)));
    }
    world.barrier();
    return ExitCode::finished;
}

}  // namespace

Action add_eval(CLI::App& app) {
    auto const options = std::make_shared<EvalOptions>();
    CLI::App* const command = app.add_subcommand("eval", "Evaluate a checkpoint on the test set");
    command->add_option("path", options->path, "Checkpoint file or run directory")
        ->type_name("FILE|DIR")
        ->required();
    command->add_option("--data", options->data, "As train --data (default: the run's)")->type_name("DATA");
    command->add_option("--limit-test", options->limit_test,
                        "Use only the first N test images (0: the run's limit)");
    command->add_option("--eval-batch-size", options->batch_size, "Samples per batch (default: the run's)");
    command->add_option("--threads", options->threads, "OpenMP threads per batch (default: the run's)");
    command->add_option("--device", options->device, "auto, cpu or cuda, whatever the run was trained on")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    command->add_flag("--json", options->json, "As JSON");
    return [options](Arguments& arguments) { return run_eval(*options, arguments); };
}

}  // namespace holdfast::commands
