// SPDX-License-Identifier: Apache-2.0
#include "parallel/device_assignment.hpp"

#include <charconv>
#include <cstdlib>
#include <map>
#include <sched.h>  // g++ defines _GNU_SOURCE, which cpu_set_t needs
#include <set>
#include <unistd.h>
#include <utility>

#include "core/error.hpp"

namespace holdfast::parallel {
namespace {

constexpr char const* how_to_show_all =
    "give every rank all GPUs of its host (--gpus-per-node=N, no --gpus-per-task under mpirun; "
    "CUDA_VISIBLE_DEVICES unset "
    "or listing all)";

}  // namespace

GpuView gpu_view(std::vector<std::string> uuids) {
    // The first is made by NVIDIA's kernel module; SLURM sets the others where a job has GPUs.
    bool expects_one = access("/proc/driver/nvidia/version", F_OK) == 0;
    for (char const* const name : {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS"})
        if (char const* const value = std::getenv(name); value != nullptr && *value != '\0')
            expects_one = true;
    return {std::move(uuids), expects_one};
}

bool chooses_gpus(std::vector<GpuView> const& ranks) {
    std::size_t num_with = 0;
    bool expects_one = false;
    for (GpuView const& rank : ranks) {
        num_with += rank.uuids.empty() ? 0 : 1;
        expects_one = expects_one || rank.expects_one;
    }
    if (num_with == ranks.size()) return true;
    require(num_with == 0, ExitCode::do_not_requeue,
            "{} of {} ranks see a GPU (all must compute on the same kind of device); {}, or use --device cpu",
            num_with, ranks.size(), how_to_show_all);
    require(!expects_one, ExitCode::do_not_requeue,
            "no rank can use a GPU, though there is a driver or the job was given GPUs (training on CPUs "
            "could take days longer); see whether nvidia-smi and the driver's CUDA version are right, or use "
            "--device cpu");
    return false;
}

int assign_device(int local_rank, std::vector<std::vector<std::string>> const& visible_uuids) {
    int const num_ranks = static_cast<int>(visible_uuids.size());
    std::set<std::string> gpus;
    for (auto const& uuids : visible_uuids) gpus.insert(uuids.begin(), uuids.end());
    std::map<std::string, int> user;
    int mine = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
        auto const& uuids = visible_uuids[static_cast<std::size_t>(rank)];
        require(!uuids.empty(), ExitCode::do_not_requeue,
                "local rank {} sees no GPU (others may); {}, or use --device cpu", rank, how_to_show_all);
        require(num_ranks <= static_cast<int>(gpus.size()), ExitCode::do_not_requeue,
                "{} ranks on this host, but {} GPUs visible (NCCL needs a GPU for each rank); start {} ranks "
                "per host "
                "(mpirun --map-by ppr:{}:node, sbatch --ntasks-per-node={}), or {}",
                num_ranks, gpus.size(), gpus.size(), gpus.size(), gpus.size(), how_to_show_all);
        int const device = uuids.size() == 1 ? 0 : rank;
        require(
            device < static_cast<int>(uuids.size()), ExitCode::do_not_requeue,
            "local rank {} sees only {} of this host's {} GPUs (the local rank is the index of its GPU); {}",
            rank, uuids.size(), gpus.size(), how_to_show_all);
        auto const [first, is_new] = user.try_emplace(uuids[static_cast<std::size_t>(device)], rank);
        require(is_new, ExitCode::do_not_requeue,
                "local ranks {} and {} would both use GPU {} (NCCL needs a GPU for each rank); {}",
                first->second, rank, first->first, how_to_show_all);
        if (rank == local_rank) mine = device;
    }
    return mine;
}

std::vector<int> affinity_cores() {
    std::vector<int> cores;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int core = 0; core < CPU_SETSIZE; ++core)
            if (CPU_ISSET(core, &set)) cores.push_back(core);
    // A machine with more cores than the set holds: all of them.
    for (int core = 0; cores.empty() && core < num_machine_cores(); ++core) cores.push_back(core);
    return cores;
}

int num_machine_cores() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

std::string format_cores(std::vector<int> const& cores) {
    std::string text;
    for (std::size_t i = 0; i < cores.size();) {
        std::size_t last = i;
        while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
        if (!text.empty()) text += ',';
        text += last == i ? fmt::format("{}", cores[i]) : fmt::format("{}-{}", cores[i], cores[last]);
        i = last + 1;
    }
    return text;
}

std::vector<int> parse_cores(std::string const& text) {
    std::vector<int> cores;
    char const* next = text.data();
    char const* const end = text.data() + text.size();
    auto const number = [&] {
        int value = 0;
        auto const result = std::from_chars(next, end, value);
        require(result.ec == std::errc{} && value >= 0, ExitCode::internal_error,
                "'{}' is not a list of cores", text);
        next = result.ptr;
        return value;
    };
    while (next != end) {
        int const first = number();
        int last = first;
        if (next != end && *next == '-') {
            ++next;
            last = number();
        }
        for (int core = first; core <= last; ++core) cores.push_back(core);
        if (next == end) break;
        require(*next == ',' && next + 1 != end, ExitCode::internal_error, "'{}' is not a list of cores",
                text);
        ++next;
    }
    return cores;
}

}  // namespace holdfast::parallel
