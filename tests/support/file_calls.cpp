// SPDX-License-Identifier: Apache-2.0
#undef _FORTIFY_SOURCE  // its inline functions would stand in our place
#include "support/file_calls.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/stat.h>
#include <unistd.h>

namespace holdfast::test::file_calls {
namespace {

struct OpenFile {
    std::string path;
    int number = 0;
    bool is_folder = false;
};

struct State {
    std::recursive_mutex mutex;
    bool active = false;
    std::string root;
    Fault fault;
    std::array<int, num_calls> counts{};
    std::array<std::vector<std::string>, num_calls> paths;
    std::vector<Operation> operations;
    std::map<int, OpenFile> open_files;
    int num_opened = 0;
    bool is_preloaded = false;
    int log = -1;
};

/// Never destroyed: calls come until the very end of the process.
State& state() {
    static State& instance = *new State;
    return instance;
}

template <typename Function>
Function* real(char const* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool counts_here(char const* path) {
    State const& s = state();
    return s.active && path != nullptr && s.root.compare(0, std::string::npos, path, s.root.size()) == 0;
}

ssize_t real_write(int fd, void const* data, std::size_t size) {
    static auto* const function = real<ssize_t(int, void const*, std::size_t)>("write");
    return function(fd, data, size);
}

/// Counts a call. What it fails with: an errno, short_write, or 0.
int fault_of(Call call, std::string const& path) {
    State& s = state();
    int const number = s.counts[static_cast<std::size_t>(call)]++;
    if (s.log >= 0) {
        std::string const line = std::string(call_names[static_cast<std::size_t>(call)]) + " " + path + "\n";
        static_cast<void>(real_write(s.log, line.data(), line.size()));
    }
    if (!s.is_preloaded) s.paths[static_cast<std::size_t>(call)].push_back(path);
    bool const hit = s.fault.number >= 0 && s.fault.call == call &&
                     (number == s.fault.number || (s.fault.persistent && number > s.fault.number));
    return hit ? s.fault.error : 0;
}

void record(Operation operation) {
    State& s = state();
    if (!s.is_preloaded) s.operations.push_back(std::move(operation));
}

int failed(int error) {
    errno = error;
    return -1;
}

int open_file(char const* path, int flags, mode_t mode) {
    static auto* const function = real<int(char const*, int, ...)>("open");
    if (!state().active) return function(path, flags, mode);
    std::lock_guard const lock(state().mutex);
    if (!counts_here(path)) return function(path, flags, mode);
    if (int const error = fault_of(Call::open, path)) return failed(error);
    bool const is_new = ::access(path, F_OK) != 0;
    int const fd = function(path, flags, mode);
    if (fd < 0) return fd;
    struct stat status {};
    OpenFile file{path, state().num_opened++, ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)};
    // O_CREAT of what is there already creates nothing.
    record({Call::open, path, "", file.number, is_new ? flags : flags & ~O_CREAT, 0, "", false});
    state().open_files[fd] = std::move(file);
    return fd;
}

OpenFile const* tracked(int fd) {
    State const& s = state();
    auto const found = s.open_files.find(fd);
    return s.active && found != s.open_files.end() ? &found->second : nullptr;
}

int error_named(std::string const& name) {
    std::map<std::string, int> const errors{{"ENOSPC", ENOSPC},    {"EIO", EIO},       {"EDQUOT", EDQUOT},
                                            {"EROFS", EROFS},      {"ESTALE", ESTALE}, {"EINTR", EINTR},
                                            {"EMFILE", EMFILE},    {"EACCES", EACCES}, {"EINVAL", EINVAL},
                                            {"short", short_write}};
    auto const found = errors.find(name);
    if (found == errors.end()) {
        std::fprintf(stderr, "FILE_CALLS_FAIL: unknown error %s\n", name.c_str());
        std::_Exit(2);
    }
    return found->second;
}

Call call_named(std::string const& name) {
    for (std::size_t i = 0; i < num_calls; ++i) {
        if (name == call_names[i]) return static_cast<Call>(i);
    }
    std::fprintf(stderr, "FILE_CALLS_FAIL: unknown call %s\n", name.c_str());
    std::_Exit(2);
}

__attribute__((constructor)) void start_from_environment() {
    char const* const root = std::getenv("FILE_CALLS_ROOT");
    if (root == nullptr) return;
    Fault fault;
    if (char const* const text = std::getenv("FILE_CALLS_FAIL")) {
        char call[32] = {}, error[32] = {}, on[8] = {};
        if (std::sscanf(text, "%31[^:]:%d:%31[^:]:%7s", call, &fault.number, error, on) < 3) std::_Exit(2);
        fault.call = call_named(call);
        fault.error = error_named(error);
        fault.persistent = on[0] != '\0';
    }
    if (char const* const log = std::getenv("FILE_CALLS_LOG"))
        state().log = ::open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    state().is_preloaded = true;
    start(root, fault);
}

}  // namespace

void start(std::string const& root, Fault const& fault) {
    State& s = state();
    std::lock_guard const lock(s.mutex);
    s.root = root;
    s.fault = fault;
    s.counts = {};
    s.paths = {};
    s.operations.clear();
    s.open_files.clear();
    s.active = true;
}

void stop() { state().active = false; }

std::array<int, num_calls> counts() { return state().counts; }

std::vector<std::string> paths(Call call) { return state().paths[static_cast<std::size_t>(call)]; }

std::vector<Operation> const& recorded() { return state().operations; }

void mark(std::string const& name) { record({Call::open, name, "", -1, 0, 0, "", true}); }

}  // namespace holdfast::test::file_calls

// ---- the C library's names ----

using namespace holdfast::test::file_calls;

extern "C" {

int open(char const* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t const mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return open_file(path, flags, mode);
}

int open64(char const* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t const mode = va_arg(arguments, mode_t);
    va_end(arguments);
    return open_file(path, flags, mode);
}

ssize_t write(int fd, void const* data, size_t size) {
    if (!state().active) return real_write(fd, data, size);
    std::lock_guard const lock(state().mutex);
    OpenFile const* const file = tracked(fd);
    if (file == nullptr) return real_write(fd, data, size);
    int const error = fault_of(Call::write, file->path);
    if (error > 0) return failed(error);
    if (error == short_write && size > 1) size /= 2;
    bool const appends = (::fcntl(fd, F_GETFL) & O_APPEND) != 0;
    off_t const offset = ::lseek(fd, 0, appends ? SEEK_END : SEEK_CUR);
    ssize_t const written = real_write(fd, data, size);
    if (written > 0)
        record({Call::write, file->path, "", file->number, 0, offset,
                std::string(static_cast<char const*>(data), static_cast<std::size_t>(written)), false});
    return written;
}

int fsync(int fd) {
    static auto* const real_fsync = real<int(int)>("fsync");
    // Nothing depends on the disk of the machine that tests.
    auto const function = [](int of) { return state().is_preloaded ? real_fsync(of) : 0; };
    if (!state().active) return function(fd);
    std::lock_guard const lock(state().mutex);
    OpenFile const* const file = tracked(fd);
    if (file == nullptr) return function(fd);
    Call const call = file->is_folder ? Call::sync_folder : Call::fsync;
    if (int const error = fault_of(call, file->path)) return failed(error);
    int const result = function(fd);
    if (result == 0) record({call, file->path, "", file->number, 0, 0, "", false});
    return result;
}

int fdatasync(int fd) { return fsync(fd); }

int close(int fd) {
    static auto* const function = real<int(int)>("close");
    if (!state().active) return function(fd);
    std::lock_guard const lock(state().mutex);
    OpenFile const* const file = tracked(fd);
    if (file == nullptr) return function(fd);
    int const error = fault_of(Call::close, file->path);
    state().open_files.erase(fd);
    int const result = function(fd);  // Linux closes the descriptor whatever it reports
    return error != 0 ? failed(error) : result;
}

int rename(char const* from, char const* to) noexcept {
    static auto* const function = real<int(char const*, char const*)>("rename");
    if (!state().active) return function(from, to);
    std::lock_guard const lock(state().mutex);
    if (!counts_here(to)) return function(from, to);
    if (int const error = fault_of(Call::rename, to)) return failed(error);
    int const result = function(from, to);
    if (result == 0) record({Call::rename, from, to, -1, 0, 0, "", false});
    return result;
}

int mkdir(char const* path, mode_t mode) noexcept {
    static auto* const function = real<int(char const*, mode_t)>("mkdir");
    if (!state().active) return function(path, mode);
    std::lock_guard const lock(state().mutex);
    if (!counts_here(path)) return function(path, mode);
    if (int const error = fault_of(Call::mkdir, path)) return failed(error);
    int const result = function(path, mode);
    if (result == 0) record({Call::mkdir, path, "", -1, 0, 0, "", false});
    return result;
}

int unlink(char const* path) noexcept {
    static auto* const function = real<int(char const*)>("unlink");
    if (!state().active) return function(path);
    std::lock_guard const lock(state().mutex);
    if (!counts_here(path)) return function(path);
    if (int const error = fault_of(Call::unlink, path)) return failed(error);
    int const result = function(path);
    if (result == 0) record({Call::unlink, path, "", -1, 0, 0, "", false});
    return result;
}

}  // extern "C"
