// SPDX-License-Identifier: Apache-2.0
// Stands between a program and the C library's file calls: counts those below one folder, makes chosen ones fail, and
// records them with their data. Linked into a test it is told by the functions below; as a library for LD_PRELOAD by
//   FILE_CALLS_ROOT=FOLDER             the calls that count
//   FILE_CALLS_FAIL=CALL:N:ERROR[:on]  the Nth of these calls (from 0) fails; with :on all later ones too
//   FILE_CALLS_LOG=FILE                gets a line "CALL PATH" for each
// Calls: open write fsync sync_folder close rename mkdir unlink. Errors: those of errno(3) that disks give, and "short".
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <sys/types.h>
#include <vector>

namespace holdfast::test::file_calls {

enum class Call { open, write, fsync, sync_folder, close, rename, mkdir, unlink };
inline constexpr std::array call_names{"open",  "write",  "fsync", "sync_folder",
                                       "close", "rename", "mkdir", "unlink"};
inline constexpr std::size_t num_calls = call_names.size();

inline constexpr int short_write = -1;  ///< in place of an errno: half of the bytes are written

struct Fault {
    Call call = Call::open;
    int number = -1;  ///< of the calls of this kind; none if negative
    int error = 0;
    bool persistent = false;
};

/// One call that succeeded and changes what is on the disk, or says that something is on it.
struct Operation {
    Call call;
    std::string path;    ///< of the file when it was opened, or the folder
    std::string target;  ///< of a rename
    int file = -1;       ///< which opening of a file: same number, same descriptor
    int flags = 0;       ///< of open()
    off_t offset = 0;    ///< of a write
    std::string data;
    bool is_mark = false;  ///< not a call: the program says that it has reached `path`
};

/// Counts from here on, with this fault.
void start(std::string const& root, Fault const& fault = {});
void stop();
/// Calls of each kind since the start, those that failed included.
std::array<int, num_calls> counts();
/// The paths of the calls of one kind since the start, in their order.
std::vector<std::string> paths(Call call);
/// What happened since the start.
std::vector<Operation> const& recorded();
/// Puts a mark between the recorded calls.
void mark(std::string const& name);

}  // namespace holdfast::test::file_calls
