// SPDX-License-Identifier: Apache-2.0
// The front door: pick the command, run it, turn what comes out into an exit code.
#include <chrono>
#include <csignal>
#include <exception>
#include <thread>
#include <unistd.h>

#include "commands/commands.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/stop_request.hpp"
#include "parallel/mpi_session.hpp"

namespace {

/// Ends all ranks. Nothing here waits for peers: they may wait in a collective that this rank has left.
[[noreturn]] void report_and_abort(holdfast::ExitCode code, char const* message) {
    holdfast::log::write_error(message);
    holdfast::parallel::MpiSession::abort(static_cast<int>(code));
}

bool is_terminated_within(std::chrono::milliseconds time) {
    auto const end = std::chrono::steady_clock::now() + time;
    while (holdfast::stop_signal() != SIGTERM && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return holdfast::stop_signal() == SIGTERM;
}

/// The same for an error that all ranks have. Rank 0 says it at once, so that it cannot be lost, and rank 1 aborts: Open MPI then
/// prints a banner that buries it, and sends TERM to the others a second before KILL. In that second rank 0 says it again.
[[noreturn]] void report_agreed_and_abort(holdfast::ExitCode code, char const* message) {
    using namespace std::chrono_literals;
    int const rank = holdfast::log::rank();
    holdfast::log::write_agreed_error(message);
    if (rank == 0 && holdfast::log::num_ranks() > 1) {
        holdfast::request_stop(0);  // an earlier TERM is not the one that is waited for
        if (is_terminated_within(1500ms)) holdfast::log::write_last_line(static_cast<int>(code), message);
        _exit(static_cast<int>(code));
    }
    if (rank == 1) std::this_thread::sleep_for(100ms);
    if (rank > 1) std::this_thread::sleep_for(3s);  // every rank that aborts would add to the banner
    holdfast::parallel::MpiSession::abort(static_cast<int>(code));
}

}  // namespace

int main(int argc, char** argv) try {
    holdfast::install_stop_handlers();
    holdfast::commands::Arguments arguments{argc, argv};
    return static_cast<int>(holdfast::commands::run_command_line(arguments));
} catch (holdfast::AgreedError const& error) {
    report_agreed_and_abort(error.code(), error.what());
} catch (holdfast::Error const& error) {
    report_and_abort(error.code(), error.what());
} catch (std::exception const& error) {
    report_and_abort(holdfast::ExitCode::internal_error, error.what());
}
