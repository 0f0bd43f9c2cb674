// SPDX-License-Identifier: Apache-2.0
// Signals only set a flag: USR1, TERM and INT ask for a checkpoint and a clean end after the current step; a second INT
// stops at once. The trainer reads the flag once per step and tells the other ranks through the gradient exchange.
#pragma once

namespace holdfast {

/// Installs the handlers. main's first statement; again after MPI and NCCL have started, which may install their own.
void install_stop_handlers();

/// The signal that asked for a stop, or 0.
int stop_signal();

/// Asks for a stop as the signal would (RUN/drain, tests).
void request_stop(int signal);

}  // namespace holdfast
