// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands/command_line.hpp"
#include "commands/doctor/host_facts.hpp"
#include "commands/doctor/launch_facts.hpp"
#include "commands/doctor/storage_facts.hpp"
#include "commands/doctor/within.hpp"
#include "commands/launch_device.hpp"
#include "commands/settings_flags.hpp"
#include "commands/train_start.hpp"
#include "commands/version.hpp"
#include "core/json_text.hpp"
#include "core/log.hpp"
#include "cuda/device_runtime.hpp"
#include "data/image_dataset.hpp"
#include "model/resnet.hpp"
#include "parallel/host_shared_memory.hpp"
#include "parallel/mpi_session.hpp"
#include "parallel/rank_difference.hpp"
#include "train/compute_thread.hpp"
#include "train/numeric_fingerprint.hpp"
#include "train/run_state.hpp"
#include "train/training_engine.hpp"

namespace holdfast::commands {
namespace {

using doctor::Finding;
using doctor::State;
using parallel::Communicator;

constexpr std::chrono::seconds mpi_start_limit{10};  ///< it takes 0.1 to 1 s
// Every check has a limit of its own; these are for calls of MPI whose peers do not come.
constexpr std::chrono::seconds quick_limit{60};
constexpr std::chrono::seconds full_limit{300};
constexpr std::chrono::seconds disk_limit{
    10};  ///< a disk that takes longer for a small file is none for checkpoints
constexpr std::chrono::seconds data_limit{120};

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

std::vector<std::string> host_of_rank(parallel::LaunchTable const& table) {
    std::vector<std::string> hosts;
    for (parallel::LaunchRow const& row : table.rows) hosts.push_back(row.host_name);
    return hosts;
}

/// Bytes of a checkpoint of these settings, but for its history.
std::uint64_t checkpoint_bytes(model::FlatLayout const& layout, train::Settings const& settings) {
    constexpr std::uint64_t names_and_progress = std::uint64_t{1} << 17;
    return train::StateTensors::num_floats(layout, train::averages_of(settings)) * sizeof(float) +
           names_and_progress;
}

/// CIFAR-10's network.
model::FlatLayout layout_of(train::Settings const& settings) {
    return model::make_resnet(
               {settings.model == "resnet18" ? 18 : 34, static_cast<int>(settings.width), 10, 3})
        .layout;
}

/// Collective. The disk of the run directory; complete on rank 0.
doctor::Findings collective_storage(Communicator const& world, DoctorOptions const& options,
                                    std::vector<std::string> const& hosts) {
    bool const is_root = world.rank() == 0;
    std::string const run = options.run;
    std::string folder;
    std::string nonce;
    std::string failure;
    if (is_root) {
        auto const found = doctor::within(disk_limit, [run] { return doctor::existing_folder(run); });
        folder = found.is_known() ? found.value : run;
        failure = found.unknown;
    }
    if (is_root && failure.empty()) {
        std::string const name = fmt::format(".holdfast-doctor-{}-{:08x}", getpid(), std::random_device{}());
        failure = doctor::within(disk_limit, [folder, name] {
                      doctor::write_nonce(folder, name, name);
                      return true;
                  }).unknown;
        if (failure.empty()) nonce = name;
    }
    folder = world.broadcast(folder, 0);
    nonce = world.broadcast(nonce, 0);
    std::string unseen;
    if (!nonce.empty()) {
        auto const looked = doctor::within(
            disk_limit, [folder, nonce] { return doctor::look_for_nonce(folder, nonce, nonce); });
        unseen = looked.is_known() ? looked.value : looked.unknown;
    }
    std::vector<std::string> const unseen_by = world.all_gather(unseen);
    if (!is_root) return {};
    doctor::Known<doctor::SyncTimes> sync{{}, "nothing can be written"};
    if (!nonce.empty()) {
        static_cast<void>(doctor::within(disk_limit, [folder, nonce] {
            doctor::remove_nonce(folder, nonce);
            return true;
        }));
        sync = doctor::within(disk_limit, [folder] { return doctor::measure_sync(folder); });
    }
    auto const space = doctor::within(disk_limit, [folder] { return doctor::space_of(folder); });
    auto const stored = doctor::within(disk_limit, [run] { return doctor::checkpoints_of(run); }).value;
    std::uint64_t const size = stored.count > 0
                                   ? stored.size_bytes_each
                                   : checkpoint_bytes(layout_of(options.settings), options.settings);
    std::string const shown = doctor::absolute_path(folder);
    return {doctor::judge_run_directory(run, shown, failure),
            doctor::judge_shared(!nonce.empty(), shown, unseen_by, hosts), doctor::judge_sync(sync, size),
            doctor::judge_space(space, shown, size, stored.count, options.keep)};
}

/// Collective. The memory that the ranks of each host share.
Finding collective_shared_memory(Communicator const& world, DoctorOptions const& options,
                                 parallel::LaunchTable const& table, int threads, bool uses_gpus) {
    bool const needs_folder = !parallel::HostSharedMemory::collective_needs_no_folder(world);
    char const* const setting = std::getenv(needs_folder ? "OMPI_MCA_osc_sm_backing_directory"
                                                         : "OMPI_MCA_btl_vader_backing_directory");
    std::string const folder = setting == nullptr ? "/dev/shm" : setting;
    auto const mine = doctor::free_bytes_of(folder);
    std::vector<std::string> const all = world.all_gather(fmt::format("{} {}", mine.value, mine.unknown));
    model::FlatLayout const layout = layout_of(options.settings);
    std::vector<doctor::SharedMemory> hosts;
    for (int const rank : table.first_rank_of_hosts()) {
        parallel::LaunchRow const& row = table.rows[static_cast<std::size_t>(rank)];
        doctor::SharedMemory host;
        host.host = row.host_name;
        host.num_ranks = table.num_ranks_of_host(row.host);
        host.folder = folder;
        std::istringstream words(all[static_cast<std::size_t>(rank)]);
        words >> host.free_bytes.value;
        words.get();
        std::getline(words, host.free_bytes.unknown);
        host.needs_folder = needs_folder;
        int const buffers = std::min(table.num_replicas_of_host(row.host),
                                     host.num_ranks * train::replica_slots(table, threads));
        host.needed_bytes = (train::StateTensors::num_floats(layout, train::averages_of(options.settings)) +
                             layout.num_floats * static_cast<std::size_t>(buffers)) *
                            sizeof(float);
        host.uses_gpus = uses_gpus;
        hosts.push_back(std::move(host));
    }
    return doctor::judge_shared_memory(hosts);
}

/// Collective. Whether the ranks can compute, and compute the same: their threads, and the numeric platform.
doctor::Findings collective_arithmetic(Communicator const& world, int threads, train::ComputeDevice device) {
    std::string failure;
    std::string fingerprint;
    // In a thread of its own: the first parallel region of a thread fixes how its team computes, and training has yet to say how.
    std::thread([&] {
        try {
            train::require_full_team(threads);
            if (device.has_device_memory()) cuda::use_device(device.gpu);
            fingerprint = train::numeric_fingerprint(threads, device);
        } catch (std::exception const& error) {
            failure = error.what();
        }
    }).join();
    return {doctor::judge_threads(threads, world.all_gather(failure)),
            doctor::judge_sameness(
                "numerics", "numeric platform", parallel::collective_difference(world, fingerprint),
                "hosts of one kind (sbatch --constraint), and one LibTorch on all of them")};
}

/// Collective. Every rank reads the data.
Finding collective_data(Communicator const& world, DoctorOptions const& options,
                        std::vector<std::string> const& hosts) {
    struct Found {
        std::string digest;
        std::string description;
    };
    if (!options.looks_at_data) return doctor::judge_data("", "", {}, {}, "");
    train::Settings const settings = options.settings;
    auto const found = doctor::within(data_limit, [settings] {
        data::TrainAndTest const sets =
            data::open_datasets(settings.data, settings.limit_train, settings.limit_test);
        return Found{data::digest_of(*sets.train, *sets.test).hex(), sets.train->description()};
    });
    std::vector<std::string> const failures = world.all_gather(found.unknown);
    std::string const difference = parallel::collective_difference(world, found.value.digest);
    return doctor::judge_data(settings.data, found.value.description, failures, hosts, difference);
}

/// Collective. Programs, libraries and settings.
doctor::Findings collective_installation(Communicator const& world, DoctorOptions const& options,
                                         bool uses_gpus) {
    auto const program = doctor::within(disk_limit, [] { return program_description(); });
    std::string const programs =
        parallel::collective_difference(world, program.is_known() ? program.value : program.unknown);
    std::string const settings =
        parallel::collective_difference(world, options.command_text + doctor::own_environment());
    auto const versions = nlohmann::ordered_json::parse(stack_versions());
    std::string summary;
    for (auto const& [name, version] : versions.items())
        summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", name, version.get<std::string>());
    return {doctor::judge_versions(summary), doctor::judge_libtorch(doctor::find_libtorch(uses_gpus)),
            doctor::judge_nccl(doctor::find_nccl()),
            doctor::judge_sameness(
                "programs", "program and libraries", programs,
                "one installation on a file system that all hosts see, and the same modules everywhere"),
            doctor::judge_sameness(
                "settings", "flags and HOLDFAST_ variables", settings,
                "mpirun -x HOLDFAST_NAME passes a variable to other hosts; one command line for all")};
}

/// Rank 0: the job it is in.
Finding requeue_finding() {
    std::string const job = doctor::slurm_job();
    doctor::Known<std::string> description;
    try {
        if (!job.empty()) description.value = doctor::describe_job(job);
    } catch (Error const& error) {
        description.unknown = error.what();
    }
    return doctor::judge_requeue(job, description);
}

/// Collective. All that takes longer than a moment.
void collective_look_closer(Communicator const& world, DoctorOptions const& options,
                            std::vector<RankView> const& views, Diagnosis& diagnosis) {
    doctor::Findings& findings = diagnosis.findings;
    auto const add = [&](doctor::Findings more) { std::ranges::move(more, std::back_inserter(findings)); };
    parallel::LaunchTable const& table = diagnosis.table;
    std::vector<std::string> const hosts = host_of_rank(table);
    train::Settings settings = options.settings;
    settings.replicas = std::max<std::int64_t>(settings.replicas, world.size());
    Finding& devices = *std::ranges::find(findings, "devices", &Finding::check);
    bool const uses_gpus =
        cuda::supports_gpus() && settings.device != "cpu" &&
        std::ranges::any_of(views, [](auto const& view) { return !view.gpus.uuids.empty(); });
    LaunchDevice device;
    if (uses_gpus && devices.state == State::ok) {
        settings.device = "cuda";
        try {
            device = collective_start_device(world, settings);
        } catch (AgreedError const& error) {
            devices = doctor::finding_of(devices.check, State::error, error.what());
        }
    }
    int const threads =
        static_cast<int>(settings.threads == 0 ? default_threads(settings, table) : settings.threads);
    findings.push_back(doctor::judge_binding(table, threads));
    findings.push_back(doctor::judge_oversubscription(table, threads, collective_cpu_quota(world)));
    add(collective_arithmetic(world, threads, device.compute));
    add(collective_installation(world, options, uses_gpus));
    add(collective_storage(world, options, hosts));
    findings.push_back(collective_shared_memory(world, options, table, threads, uses_gpus));
    findings.push_back(doctor::judge_clock(doctor::collective_clock_offsets(world), hosts));
    findings.push_back(collective_data(world, options, hosts));
    if (world.rank() == 0) findings.push_back(requeue_finding());
}

nlohmann::ordered_json json_of(Diagnosis const& diagnosis) {
    nlohmann::ordered_json json;
    json["format"] = 1;
    json["ok"] = diagnosis.num_errors == 0;
    json["ranks"] = nlohmann::ordered_json::array();
    for (std::size_t rank = 0; rank < diagnosis.table.rows.size(); ++rank) {
        parallel::LaunchRow const& row = diagnosis.table.rows[rank];
        json["ranks"].push_back({{"rank", rank},
                                 {"host", row.host_name},
                                 {"device", row.device},
                                 {"cores", parallel::format_cores(row.cores)}});
    }
    json["versions"] = nlohmann::ordered_json::parse(stack_versions());
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
        limit.emplace(options.quick ? quick_limit : full_limit);
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
    return diagnosis.num_errors == 0 ? ExitCode::finished : ExitCode::do_not_requeue;
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
    train::Settings const& settings = options.settings;
    diagnosis.findings = {doctor::judge_launcher(launcher),
                          doctor::judge_ranks(diagnosis.table, launcher, settings.replicas),
                          doctor::judge_devices(views, settings.device, cuda::supports_gpus()),
                          doctor::judge_gpus_per_task(views, settings.device, launcher)};
    if (!options.quick) collective_look_closer(world, options, views, diagnosis);
    diagnosis.num_errors =
        std::stoi(world.broadcast(fmt::format("{}", count(diagnosis.findings, State::error)), 0));
    return diagnosis;
}

void print_diagnosis(Diagnosis const& diagnosis, DoctorOptions const& options) {
    if (options.json)
        std::cout << json_text(json_of(diagnosis)) << std::endl;
    else if (options.quick)
        std::cerr << doctor::trouble_of(diagnosis.findings);
    else
        std::cout << diagnosis.table.text() << "\n\n" << doctor::text_of(diagnosis.findings) << std::endl;
}

void require_launch(doctor::Launcher const& launcher) {
    if (launcher.has_launcher()) return;  // how many it really is MPI will tell
    Finding const finding = doctor::judge_launcher(launcher);
    require(finding.state != State::error, ExitCode::do_not_requeue, "{} ({}); {}", finding.seen, finding.why,
            finding.fix);
}

void collective_require_health(Communicator const& world, DoctorOptions const& options,
                               doctor::Launcher launcher) {
    launcher.mpi_size = world.size();
    Diagnosis const diagnosis = collective_diagnose(world, options, launcher);
    if (world.rank() == 0) print_diagnosis(diagnosis, options);
    if (diagnosis.num_errors > 0)
        throw AgreedError(
            ExitCode::do_not_requeue,
            fmt::format("'holdfast doctor' finds {} errors (the launch would fail or lose work); see the "
                        "table above, or leave --doctor away",
                        diagnosis.num_errors));
}

Action add_doctor(CLI::App& app) {
    auto const options = std::make_shared<DoctorOptions>();
    CLI::App* const command = app.add_subcommand("doctor", "Look for what would make a launch fail or crawl");
    command->add_option("--run", options->run, "Run directory of the launch")
        ->type_name("DIR")
        ->capture_default_str();
    command->add_option("--keep", options->keep, "Newest checkpoints that the launch keeps")
        ->capture_default_str()
        ->check(CLI::Range(2, 1000000));
    command
        ->add_option("--data", options->settings.data,
                     "Data of the launch, read by every rank (default: not looked at)")
        ->type_name("DATA");
    add_model_flags(*command, options->settings);
    command->add_flag("--json", options->json, "As JSON");
    command->add_flag("--quick", options->quick,
                      "Only launcher, ranks and devices, on stderr, and nothing if all is well");
    return [command, options](Arguments& arguments) {
        apply_recipe(*command, options->settings);
        options->looks_at_data = command->get_option("--data")->count() > 0;
        options->command_text = config_text(*command);
        return run_doctor(*options, arguments);
    };
}

}  // namespace holdfast::commands
