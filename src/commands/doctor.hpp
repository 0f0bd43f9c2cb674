// SPDX-License-Identifier: Apache-2.0
// The preflight of a launch: everything that is known to make a launch fail, crawl or lose work, looked at before it starts.
// (What is thought of what was found: doctor/*_checks.hpp.)
#pragma once

#include <string>

#include "commands/commands.hpp"
#include "commands/doctor/finding.hpp"
#include "commands/doctor/launch_checks.hpp"
#include "parallel/communicator.hpp"
#include "parallel/launch_table.hpp"
#include "train/settings.hpp"

namespace holdfast::commands {

struct DoctorOptions {
    train::Settings settings;
    std::string run = "./holdfast-run";
    int keep = 3;
    bool json = false;
    bool quick = false;  ///< only what is known without a disk, and silent if all is well
};

struct Diagnosis {
    parallel::LaunchTable table;
    doctor::Findings findings;
};

/// Before MPI is started: whether it can be. The launcher as far as the environment tells.
doctor::Launcher find_launcher();

/// Collective. `launcher` as found before MPI was started. The same on all ranks.
Diagnosis collective_diagnose(parallel::Communicator const& world, DoctorOptions const& options,
                              doctor::Launcher const& launcher);

/// Rank 0 prints it.
void print_diagnosis(Diagnosis const& diagnosis, DoctorOptions const& options);

}  // namespace holdfast::commands
