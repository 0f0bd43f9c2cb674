// SPDX-License-Identifier: Apache-2.0
// Whether GPUs are used, which one each rank of a host uses, and how many cores it may use. Decided from what all local ranks see,
// because every way of launching shows something else: all GPUs to every rank, one GPU to each, or the same
// one to all.
#pragma once

#include <string>
#include <vector>

namespace holdfast::parallel {

/// What one rank knows of GPUs.
struct GpuView {
    std::vector<std::string> uuids;  ///< of those it can use, in device order
    bool expects_one = false;        ///< there is a driver, or the job was given GPUs
};

/// This process's. `uuids` as the CUDA runtime gives them.
GpuView gpu_view(std::vector<std::string> uuids);

/// Whether a launch with --device auto uses GPUs, given the views of all ranks: if every rank has one. Pure function. Throws
/// Error(do_not_requeue) where falling back to CPUs could be a mistake: only some ranks have one, or one is expected.
bool chooses_gpus(std::vector<GpuView> const& ranks);

/// Device index for `local_rank`, given the UUIDs of the GPUs that each local rank of the host sees, in
/// device order. One visible GPU is device 0, otherwise the local rank counts. Pure function. Throws
/// Error(do_not_requeue) with what to type if a rank sees none, if there are more ranks than GPUs, or if two
/// ranks would share one.
int assign_device(int local_rank, std::vector<std::vector<std::string>> const& visible_uuids);

/// The cores this process may run on, ascending.
std::vector<int> affinity_cores();
/// All cores of this machine that are online, whoever may use them.
int num_machine_cores();

/// "0-3,6" and back; the reverse throws Error(internal_error) for anything else.
std::string format_cores(std::vector<int> const& cores);
std::vector<int> parse_cores(std::string const& text);

}  // namespace holdfast::parallel
