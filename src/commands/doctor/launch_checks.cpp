// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor/launch_checks.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "core/error.hpp"

namespace holdfast::commands::doctor {
namespace {

constexpr char const* gpus_per_node =
    "sbatch --gpus-per-node=N in place of --gpus-per-task (unset SLURM_GPUS_PER_TASK, and "
    "CUDA_VISIBLE_DEVICES "
    "or let it list all)";

/// Several messages of one check as one finding: what was seen by each, why and fix of the first.
Finding finding_of_all(char const* check, State state, std::vector<std::string> const& messages) {
    Finding finding = finding_of(check, state, messages.front());
    for (std::size_t i = 1; i < messages.size(); ++i)
        finding.seen += fmt::format("\n{}", finding_of(check, state, messages[i]).seen);
    return finding;
}

/// The UUIDs that the ranks of each host see, in the order of its local ranks.
std::map<int, std::vector<std::vector<std::string>>> uuids_by_host(std::vector<RankView> const& views) {
    std::map<int, std::vector<std::vector<std::string>>> by_host;
    for (RankView const& view : views) by_host[view.host].push_back(view.gpus.uuids);
    return by_host;
}

bool any_expects_gpus(std::vector<RankView> const& views) {
    return std::ranges::any_of(views, [](RankView const& view) { return view.gpus.expects_one; });
}

Finding no_gpus(char const* why) { return {"devices", State::ok, fmt::format("CPUs ({})", why), "", ""}; }

/// Throws Error where the ranks would not each get a GPU of their own.
void require_a_gpu_each(std::vector<RankView> const& views) {
    std::map<std::string, int> host_of_gpu;
    for (auto const& [host, uuids] : uuids_by_host(views)) {
        static_cast<void>(parallel::assign_device(0, uuids));
        std::set<std::string> gpus;
        for (auto const& of_rank : uuids) gpus.insert(of_rank.begin(), of_rank.end());
        for (std::string const& gpu : gpus)
            require(
                host_of_gpu.try_emplace(gpu, host).second, ExitCode::do_not_requeue,
                "GPU {} is seen on two hosts, which must be containers on one machine (its ranks would "
                "share GPUs, and NCCL needs one for each); start all ranks of a machine in one container, "
                "or give each container GPUs of its own",
                gpu);
    }
}

}  // namespace

bool Launcher::is_singleton_of_many() const {
    if (mpi_size != 1) return false;
    if (ompi_size) return *ompi_size > 1;
    bool const of_step = slurm_step_tasks.value_or(1) > 1;
    return of_step || pmi_size.value_or(1) > 1 || pmix_rank.value_or(0) > 0 || slurm_process.value_or(0) > 0;
}

Finding judge_launcher(Launcher const& launcher) {
    constexpr char const* check = "launcher";
    constexpr char const* alone = "each would be rank 0 of 1, train alone and claim the same run directory";
    if (launcher.is_singleton_of_many()) {
        if (launcher.ompi_size)
            return {
                check, State::error,
                fmt::format("mpirun started {} processes, but each sees only itself", *launcher.ompi_size),
                alone, "start with the mpirun of the MPI that 'holdfast info' names: which -a mpirun"};
        if (launcher.pmi_size.value_or(1) > 1)
            return {check, State::error,
                    fmt::format(
                        "{} processes were started by a launcher of another MPI, for which PMI_SIZE speaks; "
                        "each sees only itself",
                        *launcher.pmi_size),
                    alone, "start with the mpirun of the MPI that 'holdfast info' names, or srun --mpi=pmix"};
        return {
            check, State::error,
            fmt::format("srun started {} processes that do not know of each other",
                        std::max(launcher.slurm_step_tasks.value_or(1), launcher.slurm_tasks.value_or(1))),
            alone, "srun --mpi=pmix ..., if 'srun --mpi=list' shows it; otherwise mpirun inside the job"};
    }
    bool const is_in_batch_shell =
        launcher.slurm_tasks && !launcher.in_slurm_step && !launcher.has_launcher();
    if (is_in_batch_shell && (*launcher.slurm_tasks > 1 || !launcher.mpi_failure.empty()))
        return {check, State::warning,
                fmt::format("one process without a launcher, in a job of {} tasks", *launcher.slurm_tasks),
                launcher.mpi_failure.empty()
                    ? "this looks at one process, not at a launch; if something did start several, they do "
                      "not know "
                      "of each other"
                    : fmt::format("so it cannot even start MPI here: {}", launcher.mpi_failure),
                fmt::format("mpirun -np {} holdfast doctor, or srun --mpi=pmix holdfast doctor",
                            *launcher.slurm_tasks)};
    if (!launcher.mpi_failure.empty())
        return {check, State::error, fmt::format("MPI cannot start: {}", launcher.mpi_failure),
                "training starts MPI the same way, and ends there with code 1",
                launcher.in_slurm_step ? "srun --mpi=pmix ..., or mpirun inside the job"
                                       : "mpirun -np 1 holdfast doctor; 'holdfast info' names the MPI"};
    if (launcher.ompi_size && *launcher.ompi_size != launcher.mpi_size)
        return {check, State::error,
                fmt::format("mpirun says {} ranks, MPI says {}", *launcher.ompi_size, launcher.mpi_size),
                "the environment is that of another launch",
                "unset OMPI_COMM_WORLD_SIZE, or start with mpirun"};
    if (!launcher.has_launcher()) return {check, State::ok, "1 rank without a launcher", "", ""};
    char const* const name = launcher.ompi_size ? "mpirun" : launcher.in_slurm_step ? "srun" : "a launcher";
    return {check, State::ok,
            fmt::format("{} ranks by {}{}", launcher.mpi_size, name, launcher.pmix_rank ? " with PMIx" : ""),
            "", ""};
}

Finding judge_ranks(parallel::LaunchTable const& table, Launcher const& launcher, std::int64_t replicas) {
    constexpr char const* check = "ranks";
    std::vector<std::string> hosts;
    std::set<int> counts;
    for (int const rank : table.first_rank_of_hosts()) {
        auto const& row = table.rows[static_cast<std::size_t>(rank)];
        int const num_ranks = table.num_ranks_of_host(row.host);
        counts.insert(num_ranks);
        hosts.push_back(fmt::format("{} ({})", row.host_name, num_ranks));
    }
    std::string const seen =
        fmt::format("{} ranks on {} hosts: {}", table.rows.size(), hosts.size(), fmt::join(hosts, ", "));
    if (replicas > 0 && replicas < static_cast<std::int64_t>(table.rows.size()))
        return {
            check, State::error, fmt::format("{}, for {} replicas", seen, replicas),
            "a rank needs at least one",
            fmt::format("mpirun -np {} ..., or a new run with --replicas {}", replicas, table.rows.size())};
    std::vector<std::string> const names = table.host_names();
    if (std::set(names.begin(), names.end()).size() < names.size())
        return {check, State::warning, fmt::format("{}; hosts of one name share no memory", seen),
                "ranks in containers of their own exchange gradients through the network",
                "start all ranks of a machine in one container, or with --ipc=host --pid=host"};
    if (launcher.has_launcher() && launcher.slurm_nodes.value_or(1) > static_cast<int>(hosts.size()))
        return {check, State::warning, fmt::format("{}; the job has {} nodes", seen, *launcher.slurm_nodes),
                "the other nodes are paid for and idle: this mpirun may know nothing of SLURM",
                "mpirun --map-by ppr:N:node ..., or srun --mpi=pmix ..."};
    if (counts.size() > 1)
        return {
            check, State::warning, seen, "a step takes as long as the host with the most replicas",
            "the same number of ranks on each host: sbatch --ntasks-per-node=N, mpirun --map-by ppr:N:node"};
    return {check, State::ok, seen, "", ""};
}

Finding judge_devices(std::vector<RankView> const& views, std::string const& wanted, bool has_cuda) {
    constexpr char const* check = "devices";
    if (wanted == "cpu") return no_gpus("--device cpu");
    if (!has_cuda) {
        if (wanted != "cuda" && !any_expects_gpus(views)) return no_gpus("no GPU is here");
        return {check, wanted == "cuda" ? State::error : State::warning,
                "this Holdfast was built without CUDA, but there are GPUs or they are asked for",
                "it trains on CPUs, or not at all with --device cuda",
                "build it where nvcc is: scripts/quickstart, or -DHOLDFAST_WITH_CUDA=ON; or --device cpu"};
    }
    if (wanted == "cuda" &&
        std::ranges::all_of(views, [](RankView const& view) { return view.gpus.uuids.empty(); }))
        return {check, State::error, "no rank sees a GPU",
                "there is no NVIDIA driver, the job was given none, or CUDA_VISIBLE_DEVICES hides them",
                "look at nvidia-smi; ask for GPUs (--gpus-per-node=N), or use --device cpu"};
    try {
        std::vector<parallel::GpuView> all;
        for (RankView const& view : views) all.push_back(view.gpus);
        if (wanted != "cuda" && !parallel::chooses_gpus(all)) return no_gpus("no GPU is here");
        require_a_gpu_each(views);
    } catch (Error const& error) {
        return finding_of(check, State::error, error.what());
    }
    return {check, State::ok, fmt::format("a GPU of its own for each of {} ranks", views.size()), "", ""};
}

Finding judge_gpus_per_task(std::vector<RankView> const& views, std::string const& wanted,
                            Launcher const& launcher) {
    constexpr char const* check = "gpus-per-task";
    if (wanted == "cpu") return {check, State::ok, "no GPU is asked for", "", ""};
    for (auto const& [host, uuids] : uuids_by_host(views)) {
        if (uuids.size() < 2 || std::ranges::any_of(uuids, [](auto const& gpus) { return gpus.size() != 1; }))
            continue;
        if (std::ranges::all_of(uuids, [&](auto const& gpus) { return gpus == uuids.front(); }))
            return {check, State::error,
                    fmt::format("all {} ranks of host {} see one GPU, the same one ({})", uuids.size(), host,
                                uuids.front().front()),
                    "under mpirun --gpus-per-task=1 gives every rank of a node the first task's GPU",
                    gpus_per_node};
        return {check, State::warning, fmt::format("each rank of host {} sees its own GPU only", host),
                "NCCL then cannot let GPUs of one host read each other's memory, and may fail",
                gpus_per_node};
    }
    if (launcher.gpus_per_task && launcher.ompi_size)
        return {check, State::warning,
                fmt::format("the job asks for {} GPUs per task, and mpirun starts the ranks",
                            *launcher.gpus_per_task),
                "under mpirun --gpus-per-task=1 gives every rank of a node the first task's GPU",
                gpus_per_node};
    return {check, State::ok, "no rank is limited to a GPU", "", ""};
}

Finding judge_binding(parallel::LaunchTable const& table, int threads) {
    constexpr char const* check = "binding";
    if (std::vector<std::string> const warnings = table.unused_core_warnings(); !warnings.empty())
        return finding_of_all(check, State::warning, warnings);
    std::size_t fewest = table.rows.front().cores.size();
    for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
        std::size_t const cores = table.rows[rank].cores.size();
        fewest = std::min(fewest, cores);
        if (static_cast<std::size_t>(threads) > cores)
            return {check, State::warning,
                    fmt::format("rank {} on {} may use {} cores, but a replica computes with {} threads",
                                rank, table.rows[rank].host_name, cores, threads),
                    "the threads take turns, and every step waits for the slowest",
                    "mpirun --bind-to none, or --map-by slot:PE=N; under SLURM sbatch --cpus-per-task=N and "
                    "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; or fewer --threads in a new run"};
    }
    return {check, State::ok,
            fmt::format("each rank may use at least {} cores, a replica computes with {} threads", fewest,
                        threads),
            "", ""};
}

Finding judge_oversubscription(parallel::LaunchTable const& table, int threads,
                               std::vector<double> const& cpu_quota) {
    constexpr char const* check = "oversubscription";
    if (std::vector<std::string> const warnings = table.crowded_core_warnings(); !warnings.empty())
        return finding_of_all(check, State::warning, warnings);
    for (int const rank : table.first_rank_of_hosts()) {
        auto const& row = table.rows[static_cast<std::size_t>(rank)];
        double const quota = cpu_quota[static_cast<std::size_t>(rank)];
        int const cores = table.num_cores_of_host(row.host);
        int const ranks = table.num_ranks_of_host(row.host);
        if (ranks * threads > cores)
            return {check, State::warning,
                    fmt::format("{} ranks with {} threads each share {} cores on {}", ranks, threads, cores,
                                row.host_name),
                    "the threads take turns, and every step waits for the slowest",
                    fmt::format("start {} ranks there (any number gives the same result), or give fewer "
                                "--threads in a new run",
                                std::max(1, cores / threads))};
        if (quota > 0 && quota < cores)
            return {check, State::warning,
                    fmt::format("the container on {} shows {} cores and may use {:.1f} at a time",
                                row.host_name, cores, quota),
                    "the kernel stops all threads for the rest of each tenth of a second",
                    fmt::format(
                        "start the container with --cpus={}, or give --threads so that replicas x threads "
                        "are at most {:.0f}",
                        cores, std::max(1.0, quota))};
    }
    return {check, State::ok, "no more threads than cores on any host", "", ""};
}

}  // namespace holdfast::commands::doctor
