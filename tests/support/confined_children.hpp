// SPDX-License-Identifier: Apache-2.0
// Runs many cases on untrusted bytes in forked children that cannot open a file or a socket and have little memory and
// time. So a crash, a hang or an open() deep inside a C library is one failed case with a number, not the end of the test.
#pragma once

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

namespace holdfast::test {

struct Confinement {
    std::size_t address_space_bytes = std::size_t{2} << 30;
    std::size_t resident_bytes = std::size_t{128} << 20;  ///< more than at the start
    unsigned seconds_per_case = 20;
    std::size_t max_complaints = 40;
};

/// Below this no file can be; the HDF5 library tries one there for an image in memory (image_file.cpp).
inline constexpr std::string_view impossible_folder = "/dev/null/";

/// Lets a forbidden openat() below the impossible folder fail as it would; every other one is the end.
inline void on_forbidden_call(int, siginfo_t* info, void* context) {
    auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    auto& result = machine.gregs[REG_RAX];
    auto const path = machine.gregs[REG_RSI];
#elif defined(__aarch64__)
    auto& result = machine.regs[0];
    auto const path = machine.regs[1];
#else
#error "which registers hold the arguments of a system call here?"
#endif
    if (info->si_syscall == SYS_openat &&
        std::string_view(reinterpret_cast<char const*>(path)).starts_with(impossible_folder)) {
        result = -ENOTDIR;
        return;
    }
    ::signal(SIGSYS, SIG_DFL);
    ::raise(SIGSYS);
}

/// From here on this process dies of SIGSYS when it opens a file or a socket, or starts a program.
inline void forbid_opening() {
    struct sigaction action {};
    action.sa_sigaction = on_forbidden_call;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSYS, &action, nullptr);
    sock_filter const refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    std::array const forbidden = {
#ifdef SYS_open
        SYS_open,   SYS_creat,
#endif
        SYS_openat, SYS_openat2, SYS_open_by_handle_at, SYS_socket, SYS_execve, SYS_execveat,
    };
    std::array<sock_filter, 2 * forbidden.size() + 2> program;
    std::size_t n = 0;
    program[n++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
    for (long const number : forbidden) {
        program[n++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(number), 0, 1);
        program[n++] = refuse;
    }
    program[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    sock_fprog const filter{static_cast<unsigned short>(n), program.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        std::perror("cannot forbid opening files");
        std::_Exit(3);
    }
}

class ConfinedChildren {
  public:
    /// What is wrong with a case; empty if nothing is.
    using Check = std::function<std::string(std::size_t)>;

    explicit ConfinedChildren(Confinement confinement = {}) : confinement_(confinement) {
        void* const page = ::mmap(nullptr, sizeof(Shared) * num_workers, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) throw std::bad_alloc();
        shared_ = static_cast<Shared*>(page);
    }
    ~ConfinedChildren() { ::munmap(shared_, sizeof(Shared) * num_workers); }
    ConfinedChildren(ConfinedChildren const&) = delete;
    ConfinedChildren& operator=(ConfinedChildren const&) = delete;

    /// Complaints by number of the case, over [0, count). Stops after the first few.
    std::map<std::size_t, std::string> run(std::size_t count, Check const& check) {
        complaints_.clear();
        for (std::size_t worker = 0; worker < num_workers; ++worker) start(worker, worker, count, check);
        while (!worker_of_.empty()) {
            int status = 0;
            pid_t const pid = ::wait(&status);
            auto const found = worker_of_.find(pid);
            if (found == worker_of_.end()) continue;
            std::size_t const worker = found->second;
            worker_of_.erase(found);
            if (shared_[worker].all_done) continue;
            std::size_t const failed = shared_[worker].current;
            complaints_[failed] = describe(status, shared_[worker].message);
            if (complaints_.size() < confinement_.max_complaints)
                start(worker, failed + num_workers, count, check);
        }
        return complaints_;
    }

  private:
    static constexpr std::size_t num_workers = 2;
    static constexpr int complained = 9;

    struct Shared {
        std::size_t current;
        bool all_done;
        char message[2000];
    };

    static std::size_t peak_resident_bytes() {
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
    }

    std::string describe(int status, char const* message) const {
        if (WIFEXITED(status) && WEXITSTATUS(status) == complained) return message;
        if (WIFEXITED(status)) return "left with exit code " + std::to_string(WEXITSTATUS(status));
        if (WTERMSIG(status) == SIGSYS) return "opened a file";
        if (WTERMSIG(status) == SIGALRM)
            return "was not done after " + std::to_string(confinement_.seconds_per_case) + " s";
        return std::string("crashed: ") + ::strsignal(WTERMSIG(status));
    }

    void start(std::size_t worker, std::size_t first, std::size_t count, Check const& check) {
        std::fflush(nullptr);
        pid_t const pid = ::fork();
        if (pid < 0) throw std::bad_alloc();
        if (pid > 0) {
            worker_of_[pid] = worker;
            return;
        }
        confine();
        Shared& shared = shared_[worker];
        shared.all_done = false;
        std::size_t const limit = peak_resident_bytes() + confinement_.resident_bytes;
        for (std::size_t i = first; i < count; i += num_workers) {
            shared.current = i;
            ::alarm(confinement_.seconds_per_case);
            std::string complaint;
            try {
                complaint = check(i);
            } catch (std::exception const& error) {
                complaint = std::string("threw ") + error.what();
            }
            if (complaint.empty() && peak_resident_bytes() > limit) complaint = "took too much memory";
            if (complaint.empty()) continue;
            std::snprintf(shared.message, sizeof shared.message, "%s", complaint.c_str());
            std::_Exit(complained);
        }
        shared.all_done = true;
        std::_Exit(0);
    }

    void confine() const {
        rlimit const no_core{0, 0};
        ::setrlimit(RLIMIT_CORE, &no_core);
        rlimit const address_space{confinement_.address_space_bytes, confinement_.address_space_bytes};
        ::setrlimit(RLIMIT_AS, &address_space);
        forbid_opening();
    }

    Confinement confinement_;
    Shared* shared_ = nullptr;
    std::map<pid_t, std::size_t> worker_of_;
    std::map<std::size_t, std::string> complaints_;
};

}  // namespace holdfast::test
