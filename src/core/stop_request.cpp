// SPDX-License-Identifier: Apache-2.0
#include "core/stop_request.hpp"

#include <atomic>
#include <csignal>
#include <initializer_list>
#include <unistd.h>

#include "core/exit_code.hpp"

namespace holdfast {
namespace {

std::atomic<int> requested_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "the handler may only touch lock-free atomics");

void on_signal(int signal) {
    int const earlier = requested_signal.exchange(signal);
    // A second Ctrl-C means "now": the last checkpoint on disk is good, whatever this process was doing.
    if (signal == SIGINT && earlier == SIGINT) _exit(static_cast<int>(ExitCode::retry));
}

}  // namespace

void install_stop_handlers() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (int const signal : {SIGUSR1, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
    std::signal(SIGPIPE, SIG_IGN);  // whoever reads our output may leave (| head); the run goes on
    std::signal(SIGXFSZ, SIG_IGN);  // writing beyond `ulimit -f` is an error like a full disk, not the end
}

int stop_signal() { return requested_signal.load(); }

void request_stop(int signal) { requested_signal.store(signal); }

}  // namespace holdfast
