// SPDX-License-Identifier: Apache-2.0
// Which launch may write into a run directory. The owner is whoever made RUN/writer-N, since mkdir is atomic
// on every file system; its temporary files live inside, so after a take-over, which empties and removes the
// folder, a late create or rename of the old owner fails with ENOENT. No file locks, which network file
// systems lack. Only rank 0 holds an ownership.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <thread>

namespace holdfast::checkpoint {

struct OwnershipTiming {
    std::chrono::milliseconds refresh{500};   ///< the owner counts up this often
    std::chrono::milliseconds notice{2'000};  ///< a living owner is seen to count within this time
    std::chrono::milliseconds expire{
        30'000};  ///< an owner that did not count for this long is taken for dead
};

/// The number of the newest launch that took the run over, 0 before the first. Throws Error(retry) where the folder cannot be
/// listed.
std::int64_t newest_launch(std::filesystem::path const& run_dir);

/// Whether the run has no owner, or one that is certainly dead. Never waits.
bool is_free(std::filesystem::path const& run_dir);

class RunOwnership {
  public:
    /// Takes the run over if it has no owner, or a dead one. Throws Error(owned_elsewhere), naming the owner,
    /// if it lives, and Error(retry) for disk trouble. May wait for `timing.expire` for an owner of which
    /// nothing is known.
    explicit RunOwnership(std::filesystem::path const& run_dir, OwnershipTiming const& timing = {});
    /// Leaves the folder to the next launch, which sees that this process is gone.
    ~RunOwnership();
    RunOwnership(RunOwnership const&) = delete;
    RunOwnership& operator=(RunOwnership const&) = delete;

    /// RUN/writer-N: where the owner's temporary files belong.
    std::filesystem::path const& temp_dir() const { return temp_dir_; }
    /// N, larger than that of every earlier launch of the run: the launch's number.
    std::int64_t number() const { return number_; }
    /// False once another launch has taken over.
    bool still_owner() const;
    /// Ends the ownership at a clean end. Also without it the next launch can start, if it sees that this
    /// process is gone.
    void release();

  private:
    void write_owner_file(std::int64_t counter) const;
    void remove_older_writers() const;
    void count();
    void stop_counting();

    std::filesystem::path run_dir_;
    OwnershipTiming timing_;
    std::int64_t number_ = 0;
    std::filesystem::path temp_dir_;
    std::atomic<bool> lost_{false};
    bool stopping_ = false;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::thread counter_;
};

}  // namespace holdfast::checkpoint
