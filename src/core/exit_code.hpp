// SPDX-License-Identifier: Apache-2.0
// The exit codes of every command. Scripts and schedulers act on them, so they never change meaning
// (docs/exit-codes.md).
#pragma once

namespace holdfast {

enum class ExitCode : int {
    finished = 0,          ///< also: was already finished when started again
    internal_error = 1,    ///< our bug
    usage = 2,             ///< the command line is wrong
    retry = 75,            ///< stopped cleanly, or hit something worth retrying (EX_TEMPFAIL of sysexits.h)
    do_not_requeue = 93,   ///< bad data or settings, damaged checkpoints, divergence: a person must act
    owned_elsewhere = 94,  ///< another launch owns the run directory
};

}  // namespace holdfast
