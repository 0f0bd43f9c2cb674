// SPDX-License-Identifier: Apache-2.0
#include "train/output_check.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <system_error>
#include <unistd.h>

#include "core/error.hpp"

namespace holdfast::train {
namespace {

namespace fs = std::filesystem;

/// A new folder with a name of its own in `folder`, removed again with all in it.
class TrialFolder {
  public:
    explicit TrialFolder(fs::path const& folder) : path_((folder / ".holdfast-trial-XXXXXX").string()) {
        if (::mkdtemp(path_.data()) == nullptr) error_ = std::error_code(errno, std::generic_category());
    }
    ~TrialFolder() {
        std::error_code ignored;
        if (!error_) fs::remove_all(path_, ignored);
    }
    TrialFolder(TrialFolder const&) = delete;
    TrialFolder& operator=(TrialFolder const&) = delete;
    std::error_code error() const { return error_; }
    fs::path path() const { return path_; }

  private:
    std::string path_;
    std::error_code error_;
};

/// What making the folders of `path` that are missing will meet. They are made beside their place, as another launch may be
/// about to make them.
std::error_code error_of_making(fs::path const& path) {
    std::error_code error;
    fs::path there = path;
    fs::path missing;
    while (!fs::exists(there, error)) {
        if (error) return error;
        missing = missing.empty() ? there.filename() : there.filename() / missing;
        there = there.parent_path();
    }
    TrialFolder const trial(there);
    if (trial.error()) return trial.error();
    fs::create_directories(trial.path() / missing, error);
    return error;
}

}  // namespace

void require_writable_run(fs::path const& run) {
    std::error_code error;
    if (fs::is_directory(run, error)) {
        TrialFolder const trial(run);
        require(!trial.error(), ExitCode::retry,
                "cannot write in the run directory {}: {} (errno {}; checkpoints go there); check space, "
                "quota and permissions, or choose another --run",
                run.string(), trial.error().message(), trial.error().value());
        return;
    }
    error = error_of_making(fs::absolute(run).lexically_normal());
    require(!error, ExitCode::do_not_requeue,
            "cannot create the run directory {}: {} (errno {}; checkpoints go there); choose another --run",
            run.string(), error.message(), error.value());
}

void require_appendable(fs::path const& file, fs::path const& run) {
    std::error_code error;
    fs::file_status const status = fs::status(file, error);
    bool const is_new = status.type() == fs::file_type::not_found;
    if (is_new && fs::absolute(file).lexically_normal().parent_path() ==
                      (fs::absolute(run) / "").lexically_normal().parent_path())
        return;
    if (fs::is_other(status)) return;
    // O_EXCL: what is removed again is what was made here.
    int const fd =
        ::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | (is_new ? O_CREAT | O_EXCL : 0), 0666);
    int const number = errno;
    require(
        fd >= 0, ExitCode::do_not_requeue,
        "cannot append to --log-indices {}: {} (errno {}); give a file in a folder that exists and may be "
        "written to",
        file.string(), std::strerror(number), number);
    ::close(fd);
    if (is_new) ::unlink(file.c_str());
}

}  // namespace holdfast::train
