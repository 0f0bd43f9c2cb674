// SPDX-License-Identifier: Apache-2.0
// How many OpenMP threads a replica computes with. The bits of a run depend on it, so it is a setting of the run, and a launch
// that cannot give as many threads is refused rather than allowed to compute something else.
#pragma once

namespace holdfast::train {

/// Makes the calling thread compute with `threads` OpenMP threads and flush denormals to zero. Once per thread that runs
/// replicas, before its first parallel region, so that its team inherits the mode.
void prepare_compute_thread(int threads);

/// Opens a parallel region of `threads` and throws Error(do_not_requeue) if the team is smaller.
void require_full_team(int threads);

/// glibc's malloc as the step needs it: without this every step maps and returns its large blocks, at thousands of page faults.
void keep_freed_memory();

}  // namespace holdfast::train
