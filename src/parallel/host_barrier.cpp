// SPDX-License-Identifier: Apache-2.0
#include "parallel/host_barrier.hpp"

#include <atomic>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace holdfast::parallel {
namespace {

/// Some 20 microseconds, about what it costs to sleep and be woken.
constexpr int num_spins = 500;

/// Not the _PRIVATE operations (which std::atomic::wait uses): the waiters are other processes.
void futex(std::uint32_t* word, int operation, std::uint32_t value) {
    syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void HostBarrier::wait(std::function<void()> const& while_waiting) const {
    if (num_ranks_ == 1) return;
    std::atomic_ref arrived(words_->arrived);
    std::atomic_ref generation(words_->generation);
    std::uint32_t const before = generation.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == num_ranks_) {
        arrived.store(0, std::memory_order_relaxed);
        generation.fetch_add(1, std::memory_order_release);
        futex(&words_->generation, FUTEX_WAKE, INT_MAX);
        return;
    }
    auto const passed = [&] { return generation.load(std::memory_order_acquire) != before; };
    for (int i = 0; i < num_spins; ++i) {
        if (passed()) return;
        pause_briefly();
    }
    while (!passed()) {
        if (while_waiting) {
            while_waiting();
            sched_yield();
        } else {
            futex(&words_->generation, FUTEX_WAIT, before);
        }
    }
}

}  // namespace holdfast::parallel
