// SPDX-License-Identifier: Apache-2.0
// holdfast bench: what a step costs, part by part, without a run directory.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "commands/launch_device.hpp"
#include "commands/settings_flags.hpp"
#include "commands/version.hpp"
#include "core/error.hpp"
#include "core/json_text.hpp"
#include "core/log.hpp"
#include "core/seconds_since.hpp"
#include "parallel/launch_table.hpp"
#include "parallel/mpi_session.hpp"
#include "report/start_times.hpp"
#include "train/compute_thread.hpp"
#include "train/step_rates.hpp"
#include "train/training_engine.hpp"

namespace holdfast::commands {
namespace {

struct BenchOptions {
    train::Settings settings;
    std::int64_t steps = 20;
    std::int64_t warm_up = 3;
    train::CudaGraphs cuda_graphs = train::CudaGraphs::automatic;
    bool json = false;
};

/// Proportional set size in MB: shared pages count once over all ranks.
double pss_mb() {
    std::ifstream rollup("/proc/self/smaps_rollup");
    std::string key;
    double value = 0;
    while (rollup >> key)
        if (key == "Pss:") {
            rollup >> value;
            break;
        }
    return value / 1024;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
}

/// Collective. Times of the exchange alone: the ranks begin together, and each keeps the part of the sum that it gets.
std::vector<double> all_reduce_ms(parallel::Communicator const& world, parallel::GradientExchange& exchange,
                                  std::size_t num_floats) {
    constexpr int repeats = 11;
    std::vector<float> sum(num_floats);
    std::vector<double> times_ms;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        world.barrier();
        auto const start = std::chrono::steady_clock::now();
        exchange.reduce([&](std::size_t offset, std::span<float const> piece) {
            std::copy(piece.begin(), piece.end(), sum.begin() + static_cast<std::ptrdiff_t>(offset));
        });
        times_ms.push_back(seconds_since(start) * 1e3);
    }
    return times_ms;
}

ExitCode run_bench(BenchOptions options, Arguments& arguments) {
    train::check_ranges(options.settings);
    train::keep_freed_memory();
    parallel::MpiSession const mpi(arguments.argc, arguments.argv);
    auto const world = parallel::Communicator::collective_world();
    log::set_rank(world.rank(), world.size(), world.host_name());

    train::Settings& settings = options.settings;
    if (settings.replicas == 0) settings.replicas = world.size();
    settings.device = collective_resolve_device(world, settings.device);
    LaunchDevice const device = collective_start_device(world, settings, options.cuda_graphs);
    auto const table =
        parallel::collective_launch_table(world, device.description, static_cast<int>(settings.replicas));
    if (settings.threads == 0) settings.threads = default_threads(settings, table);
    std::int64_t const steps = options.warm_up + options.steps;
    data::TrainAndTest sets;
    world.agree([&] { sets = data::open_datasets(settings.data, settings.limit_train, 0); });
    train::TrainingEngine engine(world, settings, train::network_config(settings, *sets.train), table,
                                 device.compute);
    engine.initialize(world, static_cast<std::uint64_t>(settings.seed));
    data::LoaderPlan const plan = train::loader_plan(settings, engine.replicas(), 0, steps);
    std::unique_ptr<data::DeviceImages> images;
    world.agree([&] { images = engine.make_device_images(*sets.train, plan.device_plan()); });
    data::BatchLoader loader(*sets.train, data::cifar10_normalization(), plan, images.get());

    std::vector<double> step_ms, compute_ms, exchange_ms, wait_ms;
    double start_to_first_step_s = 0;
    std::vector<float> losses;
    std::int64_t samples = 0;
    for (std::int64_t step = 0; step < steps; ++step) {
        auto const start = std::chrono::steady_clock::now();
        data::StepBatch const& batch = loader.next();
        train::StepResult const result = engine.training_step().run(
            batch, sets.train->shape(), train::sgd_rates(settings, settings.lr, step), false);
        double const elapsed_ms = seconds_since(start) * 1e3;
        if (step == 0) start_to_first_step_s = report::seconds_since_exec();
        losses.push_back(result.loss);
        if (step < options.warm_up) continue;
        samples += result.samples;
        step_ms.push_back(elapsed_ms);
        compute_ms.push_back(result.compute_s * 1e3);
        exchange_ms.push_back(result.exchange_s * 1e3);
        wait_ms.push_back(loader.last_wait_s() * 1e3);
    }
    std::vector<std::string> const pss = world.all_gather(fmt::format("{:.1f}", pss_mb()));
    std::vector<double> reduce_ms;
    if (!device.compute.has_device_memory())
        reduce_ms = all_reduce_ms(world, engine.exchange(), engine.network().layout.num_floats);
    world.barrier();
    if (world.rank() != 0) return ExitCode::finished;

    double const seconds = std::accumulate(step_ms.begin(), step_ms.end(), 0.0) / 1e3;
    nlohmann::ordered_json json;
    json["version"] = version_line();
    json["ranks"] = world.size();
    json["replicas"] = settings.replicas;
    json["device"] = device.description;
    json["batch_size"] = settings.batch_size;
    json["threads"] = settings.threads;
    json["slots"] = engine.slots().size();
    json["exchange"] = engine.exchange().name();
    json["steps"] = options.steps;
    json["step_ms"] = step_ms;
    json["parts"] = {{"data_wait_ms", wait_ms}, {"compute_ms", compute_ms}, {"exchange_ms", exchange_ms}};
    json["all_reduce_ms"] = reduce_ms;
    json["images_per_s"] = seconds > 0 ? static_cast<double>(samples) / seconds : 0.0;
    for (std::string const& value : pss) json["pss_mb"].push_back(std::stod(value));
    json["start_to_first_step_s"] = start_to_first_step_s;
    json["losses"] = losses;  // of all steps, those before the measured ones too
    if (options.json) {
        std::cout << json_text(json) << '\n';
    } else {
        fmt::print("{} ranks on {}, {} replicas x {} samples, {} threads per replica, {} exchange\n",
                   world.size(), device.description, settings.replicas, settings.batch_size, settings.threads,
                   engine.exchange().name());
        fmt::print("step      {:9.2f} ms  (median of {}, least {:.2f})\n", median(step_ms), step_ms.size(),
                   *std::min_element(step_ms.begin(), step_ms.end()));
        fmt::print(
            "  compute {:9.2f} ms\n  exchange{:9.2f} ms  (waiting for other ranks, reduction, update)\n  "
            "data    {:9.2f} ms  (waiting for the loader)\n",
            median(compute_ms), median(exchange_ms), median(wait_ms));
        fmt::print(
            "speed     {:9.1f} images/s\nmemory    {} MB per rank (PSS)\nstart     {:9.2f} s to the end of "
            "the first step\n",
            json["images_per_s"].get<double>(), fmt::join(pss, ", "), start_to_first_step_s);
    }
    return ExitCode::finished;
}

}  // namespace

Action add_bench(CLI::App& app) {
    auto const options = std::make_shared<BenchOptions>();
    CLI::App* const command = app.add_subcommand("bench", "Measure the parts of a training step");
    add_model_flags(*command, options->settings);
    options->settings.data = "synthetic:1024";
    command->add_option("--data", options->settings.data, "As train --data")
        ->type_name("DATA")
        ->capture_default_str();
    command->add_option("--limit-train", options->settings.limit_train,
                        "Use only the first N training images (0: all)");
    command->add_option("--steps", options->steps, "Measured steps")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    command->add_option("--warm-up", options->warm_up, "Steps before them")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    add_cuda_graph_flag(*command, options->cuda_graphs);
    command->add_flag("--json", options->json, "As JSON");
    return [command, options](Arguments& arguments) {
        std::string const data = options->settings.data;  // of bench also where it was not given
        apply_recipe(*command, options->settings);
        options->settings.data = data;
        return run_bench(*options, arguments);
    };
}

}  // namespace holdfast::commands
