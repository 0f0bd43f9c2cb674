// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor/host_facts.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/child_process.hpp"
#include "core/error.hpp"
#include "parallel/library_versions.hpp"
#include "train/numeric_fingerprint.hpp"
#include "train/torch_on_gpu.hpp"

namespace holdfast::commands::doctor {
namespace {

namespace fs = std::filesystem;

/// A path without links; as it is if there is nothing.
std::string real_path(fs::path const& path) {
    std::error_code error;
    fs::path const real = fs::canonical(path, error);
    return error ? path.string() : real.string();
}

}  // namespace

std::vector<std::string> mapped_files(std::string const& maps, std::string const& name) {
    std::set<std::string> files;
    std::istringstream lines(maps);
    for (std::string line; std::getline(lines, line);) {
        std::size_t const begin = line.find('/');
        if (begin == std::string::npos) continue;
        fs::path const file = line.substr(begin);
        if (file.filename().string().starts_with(name)) files.insert(file.string());
    }
    return {files.begin(), files.end()};
}

Nccl find_nccl() {
    constexpr char const* library = "libnccl.so";
    Nccl nccl;
    try {
        nccl.built = parallel::nccl_version_built();
        nccl.loaded.value = parallel::nccl_version_loaded();
    } catch (Error const& error) {
        nccl.built = "some version";
        nccl.loaded.unknown = error.what();
    }
    std::ifstream maps("/proc/self/maps");
    nccl.loaded_files = mapped_files({std::istreambuf_iterator<char>(maps), {}}, library);
    char const* const path = std::getenv("LD_LIBRARY_PATH");
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
        std::error_code error;
        fs::path const file = fs::path(folder) / "libnccl.so.2";
        if (folder.empty() || !fs::exists(file, error)) continue;
        std::string const real = real_path(file);
        if (std::ranges::find(nccl.loaded_files, real) == nccl.loaded_files.end())
            nccl.other_files.push_back(real);
    }
    return nccl;
}

LibTorch find_libtorch(bool needs_cuda) {
    LibTorch libtorch;
    libtorch.built = train::torch_version();
    libtorch.loaded = train::torch_version_loaded();
    libtorch.built_folder = real_path(HOLDFAST_TORCH_LIBRARY_DIR);
    libtorch.needs_cuda = needs_cuda;
    try {
        libtorch.folder.value = real_path(train::torch_library_folder());
        std::error_code error;
        libtorch.has_cuda = fs::exists(fs::path(libtorch.folder.value) / "libtorch_cuda.so", error);
    } catch (Error const& error) {
        libtorch.folder.unknown = error.what();
    }
    return libtorch;
}

Known<std::uint64_t> free_bytes_of(std::string const& folder) {
    struct statvfs space {};
    if (statvfs(folder.c_str(), &space) != 0) return {0, std::strerror(errno)};
    return {std::uint64_t{space.f_bavail} * space.f_frsize, ""};
}

std::string slurm_job() {
    char const* const job = std::getenv("SLURM_JOB_ID");
    return job == nullptr ? "" : job;
}

std::string describe_job(std::string const& job) {
    constexpr std::chrono::seconds patience{5};
    ChildEnd const ended = run_program({"scontrol", "show", "job", job}, patience);
    require(ended.has_ended, ExitCode::do_not_requeue, "scontrol has not answered within {} s",
            patience.count());
    require(ended.code != 127, ExitCode::do_not_requeue,
            "there is no scontrol here (in containers it is often missing)");
    require(ended.code == 0, ExitCode::do_not_requeue, "scontrol show job {} ends with code {}: {}", job,
            ended.code, ended.output.substr(0, ended.output.find('\n')));
    return ended.output;
}

std::string own_environment() {
    std::set<std::string> variables;
    for (char** entry = environ; *entry != nullptr; ++entry)
        if (std::string const text(*entry); text.starts_with("HOLDFAST_")) variables.insert(text);
    std::string text;
    for (std::string const& variable : variables) text += variable + "\n";
    return text;
}

std::vector<double> collective_clock_offsets(parallel::Communicator const& world) {
    constexpr int rounds = 5;  // leaving a barrier takes some longer than others: the median of a few
    std::vector<std::vector<double>> offsets(static_cast<std::size_t>(world.size()));
    for (int round = 0; round < rounds; ++round) {
        world.barrier();
        std::chrono::duration<double> const now = std::chrono::system_clock::now().time_since_epoch();
        std::vector<std::string> const all = world.all_gather(fmt::format("{:.6f}", now.count()));
        for (std::size_t rank = 0; rank < all.size(); ++rank)
            offsets[rank].push_back(std::stod(all[rank]) - std::stod(all.front()));
    }
    std::vector<double> medians;
    for (auto& of_rank : offsets) {
        std::ranges::sort(of_rank);
        medians.push_back(of_rank[rounds / 2]);
    }
    return medians;
}

}  // namespace holdfast::commands::doctor
