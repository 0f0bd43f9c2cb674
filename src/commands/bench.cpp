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
#include "commands/number_flag.hpp"
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
#include "train/matmul_rate.hpp"
#include "train/numeric_fingerprint.hpp"
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

struct Steps {
    std::vector<double> step_ms, compute_ms, exchange_ms, wait_ms;  ///< of those measured
    std::vector<float> losses;                                      ///< of all
    std::int64_t samples = 0;
    double start_to_first_step_s = 0;

    double images_per_s() const {
        double const seconds = std::accumulate(step_ms.begin(), step_ms.end(), 0.0) / 1e3;
        return seconds > 0 ? static_cast<double>(samples) / seconds : 0.0;
    }
};

/// Collective.
Steps run_steps(parallel::Communicator const& world, BenchOptions const& options,
                train::TrainingEngine& engine, data::ImageDataset const& images) {
    train::Settings const& settings = options.settings;
    std::int64_t const num_steps = options.warm_up + options.steps;
    data::LoaderPlan const plan = train::loader_plan(settings, engine.replicas(), 0, num_steps);
    std::unique_ptr<data::DeviceImages> on_device;
    world.agree([&] { on_device = engine.make_device_images(images, plan.device_plan()); });
    data::BatchLoader loader(images, data::cifar10_normalization(), plan, on_device.get());
    Steps steps;
    for (std::int64_t step = 0; step < num_steps; ++step) {
        auto const start = std::chrono::steady_clock::now();
        data::StepBatch const& batch = loader.next();
        double const wait_s = loader.last_wait_s();
        train::StepResult const result =
            engine.training_step().run(batch, images.shape(), train::sgd_rates(settings, settings.lr, step),
                                       false, [&] { return loader.look_ahead(); });
        double const elapsed_ms = seconds_since(start) * 1e3;
        if (step == 0) steps.start_to_first_step_s = report::seconds_since_exec();
        steps.losses.push_back(result.loss);
        if (step < options.warm_up) continue;
        steps.samples += result.samples;
        steps.step_ms.push_back(elapsed_ms);
        steps.compute_ms.push_back(result.compute_s * 1e3);
        steps.exchange_ms.push_back(result.exchange_s * 1e3);
        steps.wait_ms.push_back(wait_s * 1e3);
    }
    return steps;
}

/// Collective. The number of every rank.
std::vector<double> all_gather(parallel::Communicator const& world, double mine) {
    std::vector<double> all;
    for (std::string const& text : world.all_gather(fmt::format("{}", mine))) all.push_back(std::stod(text));
    return all;
}

void print_text(nlohmann::ordered_json const& json, Steps const& steps) {
    fmt::print("{} ranks on {}, {} replicas x {} samples, {} threads per replica, {} exchange\n",
               json["ranks"].get<int>(), json["device"].get<std::string>(), json["replicas"].get<int>(),
               json["batch_size"].get<int>(), json["threads"].get<int>(),
               json["exchange"].get<std::string>());
    fmt::print("step      {:9.2f} ms  (median of {}, least {:.2f})\n", median(steps.step_ms),
               steps.step_ms.size(), *std::min_element(steps.step_ms.begin(), steps.step_ms.end()));
    fmt::print(
        "  compute {:9.2f} ms\n  exchange{:9.2f} ms  (waiting for other ranks, reduction, update)\n  "
        "data    {:9.2f} ms  (waiting for the loader)\n",
        median(steps.compute_ms), median(steps.exchange_ms), median(steps.wait_ms));
    fmt::print("speed     {:9.1f} images/s\n", steps.images_per_s());
    fmt::print("MFU       {:9.1f} %   ({:.3f} GFLOP an image; matrices of {} in {}: {:.3f} TFLOP/s)\n",
               100 * json["mfu"].get<double>(), json["flop_per_image"].get<double>() / 1e9,
               json["matmul"]["size"].get<int>(), json["matmul"]["precision"].get<std::string>(),
               json["matmul"]["tflop_per_s"].get<double>());
    fmt::print("memory    {:.1f} MB per rank (PSS)\n",
               fmt::join(json["pss_mb"].get<std::vector<double>>(), ", "));
    if (json.contains("device_memory_mb"))
        fmt::print("  of GPUs {:.1f} MB\n",
                   fmt::join(json["device_memory_mb"].get<std::vector<double>>(), ", "));
    fmt::print("start     {:9.2f} s to the end of the first step\n", steps.start_to_first_step_s);
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
    data::TrainAndTest sets;
    world.agree([&] { sets = data::open_datasets(settings.data, settings.limit_train, 0); });
    train::TrainingEngine engine(world, settings, train::network_config(settings, *sets.train), table,
                                 device.compute);
    engine.initialize(world, static_cast<std::uint64_t>(settings.seed));

    Steps const steps = run_steps(world, options, engine, *sets.train);
    bool const has_device_memory = device.compute.has_device_memory();
    std::vector<double> const pss = all_gather(world, pss_mb());
    std::vector<double> device_memory;
    std::vector<double> reduce_ms;
    if (has_device_memory)
        device_memory = all_gather(world, static_cast<double>(cuda::device_memory_in_use()) / 1e6);
    else
        reduce_ms = all_reduce_ms(world, engine.exchange(), engine.network().layout.num_floats);
    world.barrier();
    train::MatmulRate const matmul = train::measure_matmul_rate(engine.slots(), device.compute);
    std::vector<double> const rates = all_gather(world, matmul.flop_per_s);
    if (world.rank() != 0) return ExitCode::finished;

    double const flop_per_s = std::accumulate(rates.begin(), rates.end(), 0.0);
    data::ImageShape const shape = sets.train->shape();
    double const flop_per_image = model::training_flop_per_image(engine.network(), shape.height, shape.width);
    nlohmann::ordered_json json;
    json["version"] = version_line();
    json["libtorch"] = train::torch_version_loaded();
    json["ranks"] = world.size();
    json["replicas"] = settings.replicas;
    json["device"] = device.description;
    json["batch_size"] = settings.batch_size;
    json["threads"] = settings.threads;
    json["slots"] = engine.slots().size();
    json["exchange"] = engine.exchange().name();
    json["steps"] = options.steps;
    json["step_ms"] = steps.step_ms;
    json["parts"] = {{"data_wait_ms", steps.wait_ms},
                     {"compute_ms", steps.compute_ms},
                     {"exchange_ms", steps.exchange_ms}};
    json["all_reduce_ms"] = reduce_ms;
    json["images_per_s"] = steps.images_per_s();
    json["flop_per_image"] = flop_per_image;
    json["matmul"] = {
        {"precision", matmul.precision}, {"size", matmul.size}, {"tflop_per_s", flop_per_s / 1e12}};
    json["mfu"] = flop_per_image * steps.images_per_s() / flop_per_s;
    json["pss_mb"] = pss;
    if (has_device_memory) json["device_memory_mb"] = device_memory;
    json["start_to_first_step_s"] = steps.start_to_first_step_s;
    json["losses"] = steps.losses;  // of all steps, those before the measured ones too
    if (options.json)
        std::cout << json_text(json) << '\n';
    else
        print_text(json, steps);
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
    whole_number(command->add_option("--steps", options->steps, "Measured steps")->capture_default_str(), 1);
    whole_number(
        command->add_option("--warm-up", options->warm_up, "Steps before them")->capture_default_str(), 0);
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
