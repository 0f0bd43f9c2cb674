// SPDX-License-Identifier: Apache-2.0
// Every file call of a save fails, once and from then on, with every error a disk may give. The save then either succeeds
// or says what went wrong with the exit code for "try again"; what was saved before is intact either way, and the next
// save without a fault succeeds.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "faults/saving_run.hpp"

namespace holdfast::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::TemporaryFolder;
using file_calls::Call;
using file_calls::Fault;
using file_calls::short_write;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr std::int64_t old_step = 2, new_step = 3;

/// EINTR is no error but a request to try again, and only for write().
std::vector<int> errors_of(Call call) {
    switch (call) {
        case Call::open:
            return {ENOSPC, EIO, EACCES, EMFILE};
        case Call::write:
            return {short_write, ENOSPC, EIO, EDQUOT, EINTR};
        case Call::fsync:
            return {EIO, ENOSPC, EDQUOT};
        case Call::sync_folder:
            return {EIO, EINVAL};
        case Call::close:
            return {EIO, ENOSPC, EDQUOT};
        case Call::rename:
        case Call::mkdir:
            return {EIO, ENOSPC, EACCES};
        case Call::unlink:
            return {EIO, EROFS, EACCES};
    }
    return {};
}

std::string describe(Fault const& fault) {
    return fmt::format("{} {} {} with {}", file_calls::call_names[static_cast<std::size_t>(fault.call)],
                       fault.number, fault.persistent ? "and all later ones" : "alone",
                       fault.error == short_write ? "half of the bytes" : std::strerror(fault.error));
}

std::string text_of(fs::path const& path) { return checkpoint::text_of(path); }

std::vector<std::string> lines_of(fs::path const& path) {
    std::vector<std::string> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

std::int64_t newest_good(fs::path const& run) {
    auto const found = checkpoint::CheckpointStore(run).read_newest_good(checkpoint::DamagedFiles::leave);
    if (found) {
        EXPECT_TRUE(std::ranges::equal(found->file.bytes(), SavingRun::file_of(found->step)));
    }
    return found ? found->step : -1;
}

struct Ending {
    int status = 0;
    std::string message;
};

/// In a child, so that a crash or a hang is an answer as well. Exit code: that of the error.
Ending in_child(fs::path const& message_file, std::function<void()> const& call) {
    pid_t const child = ::fork();
    if (child == 0) {
        ::alarm(20);
        try {
            call();
        } catch (Error const& error) {
            file_calls::stop();
            std::ofstream(message_file) << error.what();
            std::_Exit(static_cast<int>(error.code()));
        } catch (std::exception const& error) {
            file_calls::stop();
            std::ofstream(message_file) << "an exception that is no Error: " << error.what();
            std::_Exit(1);
        }
        std::_Exit(0);
    }
    Ending ending;
    ::waitpid(child, &ending.status, 0);
    ending.message = text_of(message_file);
    return ending;
}

class EveryFault : public ::testing::TestWithParam<Call> {
  protected:
    EveryFault() {
        SavingRun run(base.path() / "run");
        run.create();
        for (std::int64_t const step : {std::int64_t{1}, old_step}) run.save(step);
        // A launch that goes on from a run has read its newest checkpoint; here the save itself is the subject.
        SavingRun counted(copy("count"));
        file_calls::start(base.path().string());
        counted.save(new_step);
        paths = file_calls::paths(GetParam());
        file_calls::stop();
    }

    fs::path copy(std::string const& name) {
        fs::path const path = base.path() / name;
        fs::remove_all(path);
        fs::copy(base.path() / "run", path, fs::copy_options::recursive);
        return path;
    }

    TemporaryFolder base;
    std::vector<std::string> paths;  ///< of the calls under test
};

TEST_P(EveryFault, LeavesTheOldOrTheNewCheckpointAndACleanMessage) {
    Call const call = GetParam();
    int const count = static_cast<int>(paths.size());
    ASSERT_GT(count, 0) << "a save makes no such call: nothing is tested";
    int num_failed = 0;
    for (int number = 0; number < count; ++number) {
        for (int const error : errors_of(call)) {
            for (bool const persistent : {false, true}) {
                if (error == EINTR && persistent) continue;
                Fault const fault{call, number, error, persistent};
                SCOPED_TRACE(describe(fault));
                SavingRun run(copy("faulty"));
                Ending const ending = in_child(base.path() / "message", [&] {
                    file_calls::start(base.path().string(), fault);
                    run.save(new_step);
                    file_calls::stop();
                });
                ASSERT_TRUE(WIFEXITED(ending.status)) << "signal " << WTERMSIG(ending.status);
                int const code = WEXITSTATUS(ending.status);
                std::int64_t const newest = newest_good(run.path());
                EXPECT_EQ(newest_good(base.path() / "run"), old_step) << "the test spoilt its own model";
                // What a failing call means for a file that is written cannot be passed over.
                std::string const& path = paths[static_cast<std::size_t>(number)];
                // The ledger was synced before: closing it says nothing new. That is the last file closed.
                bool const closes_ledger =
                    call == Call::close && (path.ends_with("ledger.jsonl") || number == count - 1);
                bool const is_written =
                    (path.ends_with(".tmp") || path.ends_with("ledger.jsonl") || call == Call::sync_folder) &&
                    !closes_ledger;
                bool const is_harmless =
                    error == short_write || error == EINTR || (error == EINVAL && call == Call::sync_folder);
                if (is_written && !is_harmless && call != Call::unlink) {
                    EXPECT_NE(code, 0) << "said to be saved, in spite of " << path;
                }
                if (code == 0) {
                    EXPECT_EQ(newest, new_step) << "said to be saved";
                    EXPECT_EQ(text_of(run.path() / "metrics.csv"), SavingRun::metrics_of(new_step));
                } else {
                    ++num_failed;
                    EXPECT_EQ(code, static_cast<int>(ExitCode::retry)) << ending.message;
                    EXPECT_THAT(ending.message, HasSubstr(base.path().string()));
                    EXPECT_THAT(ending.message, HasSubstr(std::strerror(error)));
                    EXPECT_THAT(newest, AnyOf(Eq(old_step), Eq(new_step))) << ending.message;
                    EXPECT_THAT(
                        text_of(run.path() / "metrics.csv"),
                        AnyOf(Eq(SavingRun::metrics_of(old_step)), Eq(SavingRun::metrics_of(new_step))));
                }
                EXPECT_EQ(checkpoint::read_file(run.file(old_step), 1 << 20), SavingRun::file_of(old_step));
                std::vector<std::string> const rows = lines_of(run.path() / "ledger.jsonl");
                ASSERT_GE(rows.size(), 2u);
                EXPECT_EQ(rows[0], SavingRun::ledger_row(1));
                EXPECT_EQ(rows[1], SavingRun::ledger_row(old_step));
                if (newest == new_step) {
                    EXPECT_EQ(rows.back(), SavingRun::ledger_row(new_step)) << "a checkpoint without its row";
                }
                // A failed save takes its temporary file away again where the disk lets it.
                if (!persistent && call != Call::unlink) {
                    EXPECT_TRUE(fs::is_empty(run.writer()));
                }

                SavingRun(run.path()).save(new_step);
                EXPECT_EQ(newest_good(run.path()), new_step) << "the next save";
                EXPECT_EQ(text_of(run.path() / "metrics.csv"), SavingRun::metrics_of(new_step));
                EXPECT_EQ(lines_of(run.path() / "ledger.jsonl").back(), SavingRun::ledger_row(new_step));
                // What could not be deleted goes with the folder.
                if (call != Call::unlink) {
                    EXPECT_TRUE(fs::is_empty(run.writer()));
                }
                if (HasFailure()) return;
            }
        }
    }
    bool const only_warns = call == Call::unlink;  // old files that stay are no reason to stop
    EXPECT_EQ(num_failed > 0, !only_warns);
}

INSTANTIATE_TEST_SUITE_P(Calls, EveryFault,
                         ::testing::Values(Call::open, Call::write, Call::fsync, Call::sync_folder,
                                           Call::close, Call::rename, Call::unlink),
                         [](auto const& tested) {
                             return std::string(
                                 file_calls::call_names[static_cast<std::size_t>(tested.param)]);
                         });

}  // namespace
}  // namespace holdfast::test
