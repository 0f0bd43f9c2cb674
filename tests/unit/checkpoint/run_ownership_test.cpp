// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/run_ownership.hpp"

#include <fcntl.h>
#include <future>
#include <optional>
#include <regex>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_store.hpp"
#include "core/error.hpp"
#include "small_state.hpp"

namespace holdfast::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

// An owner of which nothing is known is waited for as long as `expire`; the tests of refusal never get that
// far.
OwnershipTiming const fast{20ms, 100ms, 400ms};
OwnershipTiming const patient{20ms, 100ms, 60'000ms};

std::pair<ExitCode, std::string> refusal(fs::path const& run, OwnershipTiming const& timing = patient) {
    try {
        RunOwnership const ownership(run, timing);
    } catch (Error const& error) {
        return {error.code(), error.what()};
    }
    return {ExitCode::finished, ""};
}

std::string owner_text(fs::path const& writer) { return text_of(writer / "owner"); }

void set_in_owner(fs::path const& writer, std::string const& key, std::string const& value) {
    std::string const text =
        std::regex_replace(owner_text(writer), std::regex(key + " [^\n]*"), key + " " + value);
    std::ofstream(writer / "owner") << text;
}

/// An owner that left without a word, and of which nobody here can look whether it lives. Returns its folder.
fs::path leave_owner_of_another_host(fs::path const& run) {
    fs::path const writer = RunOwnership(run, patient).temp_dir();
    set_in_owner(writer, "boot_id", "another");
    return writer;
}

/// A child that owns the run and then stops counting without a word: as it dies, or as it is suspended.
pid_t owner_in_child(fs::path const& run) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_t const child = ::fork();
    if (child == 0) {
        RunOwnership const ownership(run, patient);
        char const byte = 'x';
        if (::write(ready[1], &byte, 1) != 1) _exit(1);
        for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    return child;
}

TEST(RunOwnership, TakesAndReleasesWithNumbersThatGrow) {
    TemporaryFolder run;
    for (int number = 1; number <= 3; ++number) {
        RunOwnership ownership(run.path(), patient);
        EXPECT_EQ(ownership.number(), number);
        EXPECT_EQ(ownership.temp_dir(), run.path() / fmt::format("writer-{:06d}", number));
        EXPECT_TRUE(ownership.still_owner());
        EXPECT_THAT(owner_text(ownership.temp_dir()), HasSubstr(fmt::format("pid {}\n", ::getpid())));
        ownership.release();
        EXPECT_FALSE(ownership.still_owner());
        EXPECT_FALSE(fs::exists(ownership.temp_dir()));
    }
}

TEST(RunOwnership, LivingOwnerIsNamedAndKeepsTheRun) {
    TemporaryFolder run;
    RunOwnership const owner(run.path(), patient);
    auto const [code, message] = refusal(run.path());
    EXPECT_EQ(code, ExitCode::owned_elsewhere);
    EXPECT_THAT(message, HasSubstr(fmt::format("process {} on ", ::getpid())));
    EXPECT_TRUE(owner.still_owner());
    EXPECT_FALSE(fs::exists(run.path() / "writer-000002"));
}

TEST(RunOwnership, LivingOwnerInAnotherProcessKeepsTheRun) {
    TemporaryFolder run;
    pid_t const child = owner_in_child(run.path());
    EXPECT_EQ(refusal(run.path()).first, ExitCode::owned_elsewhere);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
}

TEST(RunOwnership, KilledOwnerIsReplacedAtOnceAndItsFilesGo) {
    TemporaryFolder run;
    pid_t const child = owner_in_child(run.path());
    write_bytes(run.path() / "writer-000001" / "step-000000000007.h5.tmp", file_of_step(7));
    ::kill(child, SIGKILL);
    // Not waited for yet: a zombie has stopped writing too.
    siginfo_t info;
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    RunOwnership const owner(run.path(), {20ms, 100ms, 3'600'000ms});
    ::waitpid(child, nullptr, 0);
    EXPECT_EQ(owner.number(), 2);
    EXPECT_FALSE(fs::exists(run.path() / "writer-000001"));
}

TEST(IsFree, SaysSoOnlyWhereNobodyCanBeWaitedFor) {
    TemporaryFolder run;
    EXPECT_TRUE(is_free(run.path()));
    {
        RunOwnership owner(run.path(), patient);
        EXPECT_FALSE(is_free(run.path())) << "a living owner";
        set_in_owner(owner.temp_dir(), "boot_id", "another");
        EXPECT_FALSE(is_free(run.path())) << "an owner on another host, of which nothing is known";
        owner.release();
    }
    EXPECT_TRUE(is_free(run.path()));
    fs::create_directory(run.path() / "writer-000002");
    EXPECT_FALSE(is_free(run.path())) << "an owner that has not yet written who it is";
    fs::remove(run.path() / "writer-000002");
    pid_t const child = owner_in_child(run.path());
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_TRUE(is_free(run.path())) << "a dead owner";
}

TEST(NewestLaunch, IsTheNumberOfTheLastOwner) {
    TemporaryFolder run;
    EXPECT_EQ(newest_launch(run.path() / "none"), 0);
    EXPECT_EQ(newest_launch(run.path()), 0);
    RunOwnership owner(run.path(), patient);
    EXPECT_EQ(newest_launch(run.path()), 1);
    owner.release();
    EXPECT_EQ(newest_launch(run.path()), 1);
    fs::create_directory(run.path() / "writer-000007");
    EXPECT_EQ(newest_launch(run.path()), 7);
    EXPECT_THROW(newest_launch(run.path() / "last-writer"), Error);
}

TEST(RunOwnership, LaunchOfTheSameSuperviseIsTakenOverFromAtOnce) {
    TemporaryFolder run;
    fs::path const writer = leave_owner_of_another_host(run.path());
    set_in_owner(writer, "supervised_by", "host:1:2");
    ::setenv("HOLDFAST_SUPERVISED_BY", "host:1:3", 1);
    EXPECT_FALSE(is_free(run.path()));
    ::setenv("HOLDFAST_SUPERVISED_BY", "host:1:2", 1);
    EXPECT_TRUE(is_free(run.path()));
    ::unsetenv("HOLDFAST_SUPERVISED_BY");
}

TEST(RunOwnership, ReusedProcessNumberIsNotTheOwner) {
    TemporaryFolder run;
    { RunOwnership const gone(run.path(), patient); }
    set_in_owner(run.path() / "writer-000001", "start_time", "1");
    EXPECT_EQ(RunOwnership(run.path(), {20ms, 100ms, 3'600'000ms}).number(), 2);
}

TEST(RunOwnership, SilentOwnerOnAnotherHostExpires) {
    TemporaryFolder run;
    { RunOwnership const gone(run.path(), patient); }
    set_in_owner(run.path() / "writer-000001", "boot_id", "another");
    EXPECT_EQ(RunOwnership(run.path(), fast).number(), 2);
}

TEST(RunOwnership, ProcessOfAnotherContainerIsNotJudgedByItsNumber) {
    TemporaryFolder run;
    RunOwnership const owner(run.path(), patient);
    // It counts on, but from here its process number looks unused.
    std::optional<std::pair<ExitCode, std::string>> result;
    set_in_owner(owner.temp_dir(), "pid_namespace", "pid:[1]");
    set_in_owner(owner.temp_dir(), "start_time", "1");
    EXPECT_EQ(refusal(run.path()).first, ExitCode::owned_elsewhere);
}

TEST(RunOwnership, EarlierAttemptOfTheSameSlurmJobIsDead) {
    TemporaryFolder run;
    ::setenv("SLURM_JOB_ID", "77", 1);
    { RunOwnership const gone(run.path(), patient); }  // first attempts have no restart count
    set_in_owner(run.path() / "writer-000001", "boot_id", "another");
    ::setenv("SLURM_RESTART_COUNT", "1", 1);
    RunOwnership const owner(run.path(), {20ms, 100ms, 3'600'000ms});
    EXPECT_EQ(owner.number(), 2);
    EXPECT_THAT(owner_text(owner.temp_dir()), HasSubstr("slurm_restart_count 1\n"));
    ::unsetenv("SLURM_JOB_ID");
    ::unsetenv("SLURM_RESTART_COUNT");
}

TEST(IsFree, OfSlurmJobsOnlyAnEarlierAttemptOfThisOneIsDead) {
    struct Case {
        char const* job;
        char const* restarts;
        bool is_dead;
    };
    TemporaryFolder run;
    fs::path const writer = leave_owner_of_another_host(run.path());
    ::setenv("SLURM_JOB_ID", "77", 1);
    ::setenv("SLURM_RESTART_COUNT", "2", 1);
    for (auto const& [job, restarts, is_dead] : {Case{"77", "", true},
                                                 {"77", "1", true},
                                                 {"77", "2", false},
                                                 {"77", "3", false},
                                                 {"78", "1", false},
                                                 {"", "", false}}) {
        set_in_owner(writer, "slurm_job_id", job);
        set_in_owner(writer, "slurm_restart_count", restarts);
        EXPECT_EQ(is_free(run.path()), is_dead) << "job '" << job << "', restarts '" << restarts << "'";
    }
    ::unsetenv("SLURM_JOB_ID");
    ::unsetenv("SLURM_RESTART_COUNT");
}

TEST(RunOwnership, NumberOfALaunchThatCameAndWentMeanwhileIsNotUsedAgain) {
    TemporaryFolder run;
    fs::path const last_number = run.path() / "last-writer";
    ASSERT_EQ(::mkfifo(last_number.c_str(), 0600), 0);
    auto slow = std::async(std::launch::async, [&] { return RunOwnership(run.path(), patient).number(); });
    int const held = ::open(last_number.c_str(), O_WRONLY);  // waits until the other has listed, and reads
    fs::remove(last_number);
    RunOwnership quick(run.path(), patient);
    EXPECT_EQ(quick.number(), 1);
    quick.release();
    ::close(held);  // what it read is empty, as before the quick one
    EXPECT_EQ(slow.get(), 2);
}

TEST(RunOwnership, SuspendedOwnerLosesTheRunAndCannotCommit) {
    TemporaryFolder run;
    CheckpointStore store(run.path());
    OwnershipTiming const silent{3'600'000ms, 100ms, 400ms};  // as if it were suspended
    RunOwnership stale(run.path(), silent);
    store.commit(1, file_of_step(1), stale.temp_dir());

    RunOwnership owner(run.path(), fast);
    EXPECT_EQ(owner.number(), 2);
    EXPECT_FALSE(stale.still_owner());
    try {
        store.commit(2, file_of_step(2), stale.temp_dir());
        FAIL();
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::owned_elsewhere);
    }
    stale.release();
    EXPECT_TRUE(owner.still_owner());
    owner.release();
    // The number is not used again, or the stale owner would find "its" folder.
    RunOwnership const third(run.path(), fast);
    EXPECT_EQ(third.number(), 3);
    EXPECT_FALSE(stale.still_owner());
}

TEST(RunOwnership, LosingOwnerNoticesWhileItCounts) {
    TemporaryFolder run;
    RunOwnership const owner(run.path(), fast);
    fs::remove_all(owner.temp_dir());
    EXPECT_FALSE(owner.still_owner());
}

TEST(RunOwnership, OwnerThatCannotCountForAWhileStaysOwner) {
    TemporaryFolder run;
    RunOwnership const owner(run.path(), fast);
    fs::create_directory(owner.temp_dir() / "owner.tmp");  // stands for a full disk
    std::this_thread::sleep_for(200ms);                    // some refreshes; fewer would only test less
    EXPECT_TRUE(owner.still_owner());
}

TEST(RunOwnership, FolderWithoutOwnerFileExpires) {
    TemporaryFolder run;
    fs::create_directory(run.path() / "writer-000041");
    EXPECT_EQ(RunOwnership(run.path(), fast).number(), 42);
}

TEST(RunOwnership, AllOlderFoldersGo) {
    TemporaryFolder run;
    for (char const* name : {"writer-000003", "writer-000007", "writer-x"})
        fs::create_directory(run.path() / name);
    RunOwnership const owner(run.path(), fast);
    EXPECT_EQ(owner.number(), 8);
    EXPECT_FALSE(fs::exists(run.path() / "writer-000003"));
    EXPECT_FALSE(fs::exists(run.path() / "writer-000007"));
    EXPECT_TRUE(fs::exists(run.path() / "writer-x"));
}

TEST(RunOwnership, OfManyOneWins) {
    for (int round = 0; round < 5; ++round) {
        TemporaryFolder run;
        std::atomic<int> num_owners{0}, num_refused{0};
        std::vector<std::thread> threads;
        std::mutex mutex;
        std::vector<std::unique_ptr<RunOwnership>> owners;
        for (int i = 0; i < 6; ++i) {
            threads.emplace_back([&] {
                try {
                    auto owner = std::make_unique<RunOwnership>(run.path(), patient);
                    std::lock_guard const lock(mutex);
                    owners.push_back(std::move(owner));
                    ++num_owners;
                } catch (Error const& error) {
                    EXPECT_EQ(error.code(), ExitCode::owned_elsewhere) << error.what();
                    ++num_refused;
                }
            });
        }
        for (auto& thread : threads) thread.join();
        EXPECT_EQ(num_owners, 1);
        EXPECT_EQ(num_refused, 5);
    }
}

TEST(RunOwnership, MissingRunDirectoryIsSaid) {
    auto const [code, message] = refusal("/nonexistent/run");
    EXPECT_EQ(code, ExitCode::retry);
    EXPECT_THAT(message, HasSubstr("/nonexistent/run"));
}

}  // namespace
}  // namespace holdfast::checkpoint
