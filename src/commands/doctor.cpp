// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands/doctor/launch_facts.hpp"
#include "commands/launch_device.hpp"
#include "commands/settings_flags.hpp"
#include "core/log.hpp"
#include "cuda/device_runtime.hpp"
#include "parallel/mpi_session.hpp"

namespace holdfast::commands {
namespace {

using doctor::Finding;
using doctor::State;
using parallel::Communicator;

constexpr std::chrono::seconds mpi_start_limit{10};  ///< it takes 0.1 to 1 s
constexpr std::chrono::seconds launch_limit{
    120};  ///< every check has a limit of its own; this is for calls of MPI

/// Ends the process if it still lives when the time is up: a call of MPI whose peers do not come never returns.
class EndInTime {
  public:
    explicit EndInTime(std::chrono::seconds limit)
        : thread_([this, limit](std::stop_token const& stop) {
              std::unique_lock lock(mutex_);
              if (wake_.wait_for(lock, stop, limit, [] { return false; }) || stop.stop_requested()) return;
              log::error(
                  "the ranks have not met within {} s (one of them hangs or never started, or the network "
                  "between "
                  "the hosts is closed); try mpirun -np 1, then one host, then mpirun --mca "
                  "btl_tcp_if_include "
                  "<interface>",
                  limit.count());
              _exit(static_cast<int>(ExitCode::do_not_requeue));
          }) {}

  private:
    std::mutex mutex_;
    std::condition_variable_any wake_;
    std::jthread thread_;
};

parallel::LaunchTable collective_table(Communicator const& world, DoctorOptions const& options,
                                       std::vector<RankView> const& views) {
    std::size_t const num_gpus = views[static_cast<std::size_t>(world.rank())].gpus.uuids.size();
    std::int64_t const replicas = std::max<std::int64_t>(options.settings.replicas, world.size());
    return parallel::collective_launch_table(world, num_gpus == 0 ? "cpu" : fmt::format("{} GPUs", num_gpus),
                                             static_cast<int>(replicas));
}

std::vector<double> collective_cpu_quota(Communicator const& world) {
    std::vector<double> quota;
    for (std::string const& text : world.all_gather(fmt::format("{}", doctor::cpu_quota())))
        quota.push_back(std::stod(text));
    return quota;
}

nlohmann::ordered_json json_of(Diagnosis const& diagnosis) {
    nlohmann::ordered_json json;
    json["format"] = 1;
    json["ok"] = count(diagnosis.findings, State::error) == 0;
    json["ranks"] = nlohmann::ordered_json::array();
    for (std::size_t rank = 0; rank < diagnosis.table.rows.size(); ++rank) {
        parallel::LaunchRow const& row = diagnosis.table.rows[rank];
        json["ranks"].push_back({{"rank", rank},
                                 {"host", row.host_name},
                                 {"device", row.device},
                                 {"cores", parallel::format_cores(row.cores)}});
    }
    json["findings"] = nlohmann::ordered_json::array();
    for (Finding const& finding : diagnosis.findings)
        json["findings"].push_back({{"check", finding.check},
                                    {"state", name_of(finding.state)},
                                    {"seen", finding.seen},
                                    {"why", finding.why},
                                    {"fix", finding.fix}});
    return json;
}

ExitCode run_doctor(DoctorOptions const& options, Arguments& arguments) {
    train::check_ranges(options.settings);
    doctor::Launcher launcher = find_launcher();
    std::optional<EndInTime> limit;
    std::optional<parallel::MpiSession> mpi;
    Communicator world;  // without a launcher one rank, which needs no MPI
    if (launcher.has_launcher()) {
        limit.emplace(launch_limit);
        try {
            mpi.emplace(arguments.argc, arguments.argv);
            world = Communicator::collective_world();
        } catch (Error const& error) {  // one of many that do not know of each other goes on alone
            launcher.mpi_failure = error.what();
        }
        launcher.mpi_size = world.size();
    }
    log::set_rank(world.rank(), world.size(), world.host_name());
    Diagnosis const diagnosis = collective_diagnose(world, options, launcher);
    // Of processes that do not know of each other the first one speaks, if they are numbered.
    bool const is_first = !launcher.is_singleton_of_many() ||
                          std::max(launcher.slurm_process.value_or(0), launcher.pmix_rank.value_or(0)) == 0;
    if (world.rank() == 0 && is_first) print_diagnosis(diagnosis, options);
    world.barrier();  // mpirun ends the others soon after the first that leaves with an error
    return count(diagnosis.findings, State::error) == 0 ? ExitCode::finished : ExitCode::do_not_requeue;
}

}  // namespace

doctor::Launcher find_launcher() {
    doctor::Launcher launcher = doctor::launcher_of([](char const* name) { return std::getenv(name); });
    if (!launcher.has_launcher()) launcher.mpi_failure = parallel::why_mpi_cannot_start(mpi_start_limit);
    return launcher;
}

Diagnosis collective_diagnose(Communicator const& world, DoctorOptions const& options,
                              doctor::Launcher const& launcher) {
    Diagnosis diagnosis;
    std::vector<RankView> const views = collective_gpu_views(world);
    diagnosis.table = collective_table(world, options, views);
    doctor::Findings& findings = diagnosis.findings;
    findings.push_back(doctor::judge_launcher(launcher));
    findings.push_back(doctor::judge_ranks(diagnosis.table, launcher));
    findings.push_back(doctor::judge_devices(views, options.settings.device, cuda::supports_gpus()));
    findings.push_back(doctor::judge_gpus_per_task(views, options.settings.device, launcher));
    std::vector<double> const quota = collective_cpu_quota(world);
    if (options.quick) return diagnosis;
    int const threads =
        static_cast<int>(options.settings.threads == 0 ? default_threads(options.settings, diagnosis.table)
                                                       : options.settings.threads);
    findings.push_back(doctor::judge_binding(diagnosis.table, threads));
    findings.push_back(doctor::judge_oversubscription(diagnosis.table, quota));
    return diagnosis;
}

void print_diagnosis(Diagnosis const& diagnosis, DoctorOptions const& options) {
    if (options.json)
        std::cout << json_of(diagnosis).dump(2) << '\n';
    else if (options.quick)
        std::cerr << doctor::trouble_of(diagnosis.findings);
    else
        std::cout << diagnosis.table.text() << "\n\n" << doctor::text_of(diagnosis.findings) << '\n';
}

Action add_doctor(CLI::App& app) {
    auto const options = std::make_shared<DoctorOptions>();
    CLI::App* const command = app.add_subcommand("doctor", "Look for what would make a launch fail or crawl");
    command->add_option("--run", options->run, "Run directory of the launch")->capture_default_str();
    command->add_option("--keep", options->keep, "Newest checkpoints that the launch keeps")
        ->capture_default_str()
        ->check(CLI::Range(2, 1000000));
    add_model_flags(*command, options->settings);
    command->add_flag("--json", options->json, "As JSON");
    command->add_flag("--quick", options->quick,
                      "Only launcher, ranks and devices, on stderr, and nothing if all is well");
    return [options](Arguments& arguments) { return run_doctor(*options, arguments); };
}

}  // namespace holdfast::commands
