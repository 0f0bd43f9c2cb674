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
    std::string command_text;  ///< all flags with their values: the same on all ranks?
    bool looks_at_data = false;
    std::string run = "./holdfast-run";
    int keep = 3;
    bool json = false;
    bool quick = false;  ///< only what is known without a disk, and silent if all is well
};

struct Diagnosis {
    parallel::LaunchTable table;
    doctor::Findings findings;  ///< complete on rank 0
    int num_errors = 0;         ///< on all ranks
};

/// Before MPI is started: who started this process, and whether MPI can be started, where trying it does no harm.
doctor::Launcher find_launcher();

/// Collective. `launcher` as found before MPI was started.
Diagnosis collective_diagnose(parallel::Communicator const& world, DoctorOptions const& options,
                              doctor::Launcher const& launcher);

/// Rank 0 prints it.
void print_diagnosis(Diagnosis const& diagnosis, DoctorOptions const& options);

/// Throws Error(do_not_requeue) where the environment alone tells that the ranks would not find each other.
void require_launch(doctor::Launcher const& launcher);

/// Collective. Prints the diagnosis; throws AgreedError(do_not_requeue) if it has an error.
void collective_require_health(parallel::Communicator const& world, DoctorOptions const& options,
                               doctor::Launcher launcher);

}  // namespace holdfast::commands
