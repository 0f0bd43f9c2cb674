// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor/host_checks.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include <fmt/ranges.h>

namespace holdfast::commands::doctor {
namespace {

// Of Open MPI's btl_vader_segment_size.
constexpr std::uint64_t mpi_bytes_per_rank = std::uint64_t{4} << 20;
// NVIDIA's documentation of NCCL, "Troubleshooting", advises --shm-size=1g for containers.
constexpr std::uint64_t nccl_bytes = std::uint64_t{1} << 30;
constexpr double clock_tolerance_s = 1;

/// The value of NAME=value in the words of `text`, empty if there is none.
std::string value_of(std::string const& text, std::string const& name) {
    std::istringstream words(text);
    for (std::string word; words >> word;)
        if (word.starts_with(name + "=")) return word.substr(name.size() + 1);
    return "";
}

}  // namespace

Finding judge_sameness(char const* check, char const* what, std::string const& difference, char const* fix) {
    if (difference.empty())
        return {check, State::ok, fmt::format("all ranks have the same {}", what), "", ""};
    return {check, State::error, fmt::format("not all ranks have the same {}: {}", what, difference),
            "the ranks would compute different things, so training refuses to begin", fix};
}

Finding judge_threads(int threads, std::vector<std::string> const& failure_of_rank) {
    constexpr char const* check = "threads";
    auto const failed = std::ranges::find_if(failure_of_rank, [](auto const& text) { return !text.empty(); });
    if (failed == failure_of_rank.end())
        return {check, State::ok, fmt::format("every rank gets teams of {} OpenMP threads", threads), "", ""};
    Finding finding = finding_of(check, State::error, *failed);
    finding.seen = fmt::format("rank {}: {}", failed - failure_of_rank.begin(), finding.seen);
    return finding;
}

Finding judge_shared_memory(std::vector<SharedMemory> const& hosts) {
    constexpr char const* check = "shared-memory";
    constexpr char const* larger =
        "start the container with --shm-size=2g, remove /dev/shm/vader_segment.* of launches that are gone";
    for (SharedMemory const& host : hosts) {
        if (host.num_ranks < 2) continue;
        if (!host.free_bytes.is_known())
            return {check, State::unknown, "not known",
                    fmt::format("{} on {}: {}", host.folder, host.host, host.free_bytes.unknown), ""};
        std::uint64_t const of_mpi = static_cast<std::uint64_t>(host.num_ranks) * mpi_bytes_per_rank;
        std::uint64_t const needed = of_mpi + (host.needs_folder ? host.needed_bytes : 0);
        std::string const seen =
            fmt::format("{} on {} has {} MB free", host.folder, host.host, host.free_bytes.value >> 20);
        if (host.free_bytes.value < needed)
            return {check, host.needs_folder ? State::error : State::warning,
                    fmt::format("{}, {} ranks take up to {} MB", seen, host.num_ranks, needed >> 20),
                    host.needs_folder
                        ? "the ranks may not open each other's /proc/PID/fd, so they share gradients through "
                          "this folder"
                        : "the MPI library keeps its messages there, and ends or hangs where they do not fit",
                    host.needs_folder
                        ? fmt::format("{}, or OMPI_MCA_osc_sm_backing_directory=/tmp", larger)
                        : fmt::format("{}, or OMPI_MCA_btl_vader_backing_directory=/tmp", larger)};
        if (host.uses_gpus && host.free_bytes.value < nccl_bytes)
            return {check, State::warning, seen, "NCCL takes up to 1 GB there for the GPUs of one host",
                    larger};
    }
    SharedMemory const& first = hosts.front();
    if (first.num_ranks < 2) return {check, State::ok, "no two ranks on a host", "", ""};
    return {check, State::ok,
            fmt::format("{} on {} has {} MB free; gradients are shared {}", first.folder, first.host,
                        first.free_bytes.value >> 20, first.needs_folder ? "through it" : "without it"),
            "", ""};
}

Finding judge_clock(std::vector<double> const& offset_s, std::vector<std::string> const& host_of_rank) {
    constexpr char const* check = "clock";
    auto const worst = std::ranges::max_element(offset_s, {}, [](double offset) { return std::abs(offset); });
    auto const rank = static_cast<std::size_t>(worst - offset_s.begin());
    if (std::abs(*worst) <= clock_tolerance_s)
        return {check, State::ok, fmt::format("the clocks of all hosts agree to {:.3f} s", std::abs(*worst)),
                "", ""};
    return {check, State::warning,
            fmt::format("the clock of {} (rank {}) is {:.1f} s {} that of {}", host_of_rank[rank], rank,
                        std::abs(*worst), *worst > 0 ? "ahead of" : "behind", host_of_rank.front()),
            "the time at which a launch must end (HOLDFAST_END_TIME) is judged by one of them, and logs "
            "cannot be compared",
            "on the host: chronyc tracking, chronyc makestep; ask the site's administrators"};
}

Finding judge_requeue(std::string const& job, Known<std::string> const& description) {
    constexpr char const* check = "requeue";
    if (job.empty()) return {check, State::ok, "not in a SLURM job", "", ""};
    if (!description.is_known()) return {check, State::unknown, "not known", description.unknown, ""};
    if (value_of(description.value, "BatchFlag") == "0")
        return {check, State::ok, fmt::format("job {} is interactive: nothing to requeue", job), "", ""};
    std::string const allowed = value_of(description.value, "Requeue");
    if (allowed == "1") return {check, State::ok, fmt::format("job {} may be requeued", job), "", ""};
    if (allowed != "0")
        return {check, State::unknown, "not known",
                fmt::format("scontrol show job {} says nothing of Requeue", job), ""};
    return {check, State::warning, fmt::format("job {} may not be requeued (Requeue=0)", job),
            "when its time is up or a node fails the job ends for good, and somebody must submit it again",
            fmt::format("sbatch --requeue; for this job: scontrol update JobId={} Requeue=1", job)};
}

Finding judge_nccl(Nccl const& nccl) {
    constexpr char const* check = "nccl";
    constexpr char const* lost =
        "two NCCLs in a process lose each other's calls, and GPUs then wait for ever";
    constexpr char const* only_one = "unset LD_PRELOAD and LD_LIBRARY_PATH, or remove that folder from them";
    if (nccl.loaded_files.size() > 1)
        return {check, State::error,
                fmt::format("{} libnccl are loaded: {}", nccl.loaded_files.size(),
                            fmt::join(nccl.loaded_files, ", ")),
                lost, only_one};
    if (nccl.built == "none") return {check, State::ok, "not used: built without CUDA", "", ""};
    if (!nccl.loaded.is_known()) return {check, State::unknown, "not known", nccl.loaded.unknown, ""};
    if (nccl.built != nccl.loaded.value)
        return {check, State::error,
                fmt::format("built with NCCL {}, {} is loaded", nccl.built, nccl.loaded.value),
                "training on GPUs refuses to begin with another NCCL than LibTorch's", only_one};
    if (!nccl.other_files.empty())
        return {check, State::warning,
                fmt::format("LD_LIBRARY_PATH has another libnccl: {}", fmt::join(nccl.other_files, ", ")),
                lost, only_one};
    return {check, State::ok, fmt::format("NCCL {}, once", nccl.built), "", ""};
}

Finding judge_libtorch(LibTorch const& libtorch) {
    constexpr char const* check = "libtorch";
    if (!libtorch.folder.is_known()) return {check, State::unknown, "not known", libtorch.folder.unknown, ""};
    std::string const& folder = libtorch.folder.value;
    if (libtorch.loaded != "unknown" && libtorch.loaded != libtorch.built)
        return {check, State::warning,
                fmt::format("built with LibTorch {}, {} is loaded from {}", libtorch.built, libtorch.loaded,
                            folder),
                "another version may compute other bits, or fail",
                "unset LD_LIBRARY_PATH and LD_PRELOAD, or build again with this LibTorch"};
    if (folder != libtorch.built_folder)
        return {check, State::warning,
                fmt::format("LibTorch is loaded from {}, the program was linked with {}", folder,
                            libtorch.built_folder),
                "something in the environment puts another copy first",
                "unset LD_LIBRARY_PATH and LD_PRELOAD, or build again with this LibTorch"};
    if (libtorch.needs_cuda && !libtorch.has_cuda)
        return {check, State::error, fmt::format("{} has no libtorch_cuda.so", folder),
                "LibTorch computes on GPUs by it", "build with a LibTorch for CUDA, or --device cpu"};
    return {check, State::ok, fmt::format("LibTorch {} in {}", libtorch.built, folder), "", ""};
}

Finding judge_versions(std::string const& summary) { return {"versions", State::ok, summary, "", ""}; }

Finding judge_data(std::string const& data, std::string const& description,
                   std::vector<std::string> const& failure_of_rank,
                   std::vector<std::string> const& host_of_rank, std::string const& difference) {
    constexpr char const* check = "data";
    if (data.empty()) return {check, State::ok, "not looked at: no --data is given", "", ""};
    for (std::size_t rank = 0; rank < failure_of_rank.size(); ++rank)
        if (!failure_of_rank[rank].empty())
            return {check, State::error,
                    fmt::format("rank {} ({}): {}", rank, host_of_rank[rank], failure_of_rank[rank]),
                    "every rank reads the data itself",
                    "--data <an absolute path that all hosts see>; scripts/fetch-cifar10 DIR makes one"};
    if (!difference.empty())
        return {check, State::error, fmt::format("the ranks read different data: {}", difference),
                "training refuses to begin", "--data <an absolute path that all hosts see>"};
    return {check, State::ok, fmt::format("{}: {}", data, description), "", ""};
}

}  // namespace holdfast::commands::doctor
