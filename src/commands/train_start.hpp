// SPDX-License-Identifier: Apache-2.0
// How a launch of train begins, before anything is computed or written: what the run directory holds, which settings result
// from it and the command line, and that all ranks agree on settings, data and numeric platform.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_image.hpp"
#include "checkpoint/checkpoint_store.hpp"
#include "commands/launch_device.hpp"
#include "data/image_dataset.hpp"
#include "parallel/communicator.hpp"
#include "parallel/launch_table.hpp"
#include "train/settings.hpp"
#include "train/trainer.hpp"

namespace holdfast::commands {

struct TrainOptions {
    train::Settings settings;
    std::set<std::string> explicitly_given;
    std::string command_text;  ///< all flags with their values, one a line
    std::string progress = "auto";
    train::CudaGraphs cuda_graphs = train::CudaGraphs::automatic;
    train::LaunchOptions launch;
    std::string run = "./holdfast-run";
    std::string resume = "auto";
    std::string init_from;
    int keep = 3;
    int watchdog_seconds = 60;
    std::int64_t no_progress_limit = 3;
    bool allow_platform_change = false;
    bool dry_run = false;
    bool doctor = false;
    bool print_config = false;
    double stop_after_minutes = 0;  ///< 0: no limit
};

/// What rank 0 found on disk, told to all ranks.
struct FoundRun {
    bool exists = false;
    std::optional<checkpoint::StoredCheckpoint> newest;  ///< on rank 0; none if --resume names a file
    train::Settings settings;
    std::string fingerprint;
    std::int64_t step = 0;
    std::int64_t steps_per_epoch = 1;
    bool is_evaluated = true;       ///< all finished epochs are
    std::int64_t test_correct = 0;  ///< of the last evaluated epoch, if it ended at `step`
    std::int64_t test_count = 0;
};

/// Everything the ranks have agreed on.
struct Preparation {
    train::Settings settings;  ///< complete: nothing is left to be decided
    data::TrainAndTest sets;
    std::unique_ptr<checkpoint::CheckpointFile> init_file;  ///< of --init-from, or null
    LaunchDevice device;
    parallel::LaunchTable table;
    std::string fingerprint;
};

/// Collective. Whether any rank was asked to stop.
bool collective_stop_requested(parallel::Communicator const& world);

/// Collective. All ranks must say the same, line by line; throws AgreedError with the first line that differs.
void collective_require_same(parallel::Communicator const& world, char const* what, std::string const& mine);

/// This binary's digest and the versions of LibTorch and MPI that it runs with, one a line.
std::string program_description();

/// Collective. All ranks must run the same binary with the same versions of LibTorch and MPI. (NCCL is loaded for GPUs only, and
/// then must be the one the binary was built with.)
void collective_require_same_program(parallel::Communicator const& world);

/// Collective. Looks at the run without owning or changing it.
FoundRun collective_find_run(parallel::Communicator const& world, TrainOptions const& options);

/// Collective. The run's settings where it exists, with what was given explicitly and may change. Throws on all ranks if
/// a setting that decides the result was given another value.
train::Settings collective_resume_settings(parallel::Communicator const& world, TrainOptions const& options,
                                           FoundRun const& found);

/// Collective. Opens and checks the data, completes the settings, compares them and the numeric platform over the ranks and
/// with the run.
Preparation collective_prepare(parallel::Communicator const& world, TrainOptions const& options,
                               FoundRun const& found, train::Settings settings);

/// Collective. Rank 0's file, on all ranks; the others verify what they have received.
checkpoint::CheckpointFile collective_broadcast_file(parallel::Communicator const& world,
                                                     std::optional<checkpoint::CheckpointFile> of_root,
                                                     checkpoint::Trailer trailer);

}  // namespace holdfast::commands
