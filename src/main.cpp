// SPDX-License-Identifier: Apache-2.0
// The front door: pick the command, run it, turn what comes out into an exit code.
#include <chrono>
#include <exception>
#include <thread>

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

/// The same for an error that all ranks have: rank 0 prints it, and the others give it the time to.
[[noreturn]] void report_agreed_and_abort(holdfast::ExitCode code, char const* message) {
    if (!holdfast::log::write_agreed_error(message)) std::this_thread::sleep_for(std::chrono::seconds(1));
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
