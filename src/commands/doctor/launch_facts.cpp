// SPDX-License-Identifier: Apache-2.0
#include "commands/doctor/launch_facts.hpp"

#include <charconv>
#include <sstream>
#include <string_view>

#include "core/this_host.hpp"

namespace holdfast::commands::doctor {
namespace {

/// "8", and "8(x2)" as SLURM writes lists, is 8.
std::optional<int> number_of(char const* text) {
    if (text == nullptr) return std::nullopt;
    std::string_view const digits(text);
    int value = 0;
    auto const result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec != std::errc{} || value < 0) return std::nullopt;
    return value;
}

}  // namespace

Launcher launcher_of(Lookup const& look_up) {
    auto const number = [&](char const* name) { return number_of(look_up(name)); };
    Launcher launcher;
    launcher.ompi_size = number("OMPI_COMM_WORLD_SIZE");
    launcher.pmi_size = number("PMI_SIZE");
    launcher.pmix_rank = number("PMIX_RANK");
    launcher.slurm_step_tasks = number("SLURM_STEP_NUM_TASKS");
    launcher.slurm_tasks = number("SLURM_NTASKS");
    launcher.slurm_process = number("SLURM_PROCID");
    launcher.slurm_nodes = number("SLURM_JOB_NUM_NODES");
    launcher.gpus_per_task = number("SLURM_GPUS_PER_TASK");
    launcher.in_slurm_step = look_up("SLURM_STEP_ID") != nullptr || look_up("SLURM_STEPID") != nullptr;
    return launcher;
}

double cpu_quota_of(std::string const& cpu_max) {
    std::istringstream words(cpu_max);
    double quota_us = 0;
    double period_us = 0;
    if (!(words >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return 0;
    return quota_us / period_us;
}

double cpu_quota() {
    if (double const quota = cpu_quota_of(first_line_of("/sys/fs/cgroup/cpu.max")); quota > 0) return quota;
    return cpu_quota_of(first_line_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") + " " +
                        first_line_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
}

}  // namespace holdfast::commands::doctor
