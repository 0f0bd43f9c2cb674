// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_store.hpp"

#include <algorithm>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/durable_file.hpp"
#include "small_state.hpp"
#include "support/checkpoint_trailer.hpp"
#include "support/expect_error.hpp"

namespace holdfast::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointStoreTest : public ::testing::Test {
  protected:
    CheckpointStoreTest() { fs::create_directory(writer); }

    void commit(std::int64_t step) { store.commit(step, file_of_step(step), writer); }
    void damage(std::int64_t step) {
        auto bytes = read_file(store.path_of(step), 1 << 20);
        bytes[bytes.size() / 2] ^= std::byte{4};
        write_bytes(store.path_of(step), bytes);
    }
    std::vector<std::int64_t> steps() const {
        std::vector<std::int64_t> result;
        for (auto const& entry : store.list()) result.push_back(entry.step);
        return result;
    }
    std::int64_t newest(DamagedFiles damaged = DamagedFiles::leave) {
        CheckpointStore fresh(run.path());
        auto const good = fresh.read_newest_good(damaged);
        if (!good) return -1;
        EXPECT_EQ(good->file.integer(step_path), good->step);
        EXPECT_EQ(good->path, store.path_of(good->step));
        return good->step;
    }
    template <typename Call>
    std::pair<ExitCode, std::string> error_of(Call&& call) {
        try {
            call();
        } catch (Error const& error) {
            return {error.code(), error.what()};
        }
        return {ExitCode::finished, ""};
    }

    TemporaryFolder run;
    fs::path writer = run.path() / "writer-000001";
    CheckpointStore store{run.path()};
};

TEST_F(CheckpointStoreTest, EmptyRunHasNothing) {
    EXPECT_THAT(store.list(), ElementsAre());
    EXPECT_EQ(newest(), -1);
    fs::create_directory(run.path() / "checkpoints");
    EXPECT_EQ(newest(), -1);
}

TEST_F(CheckpointStoreTest, CommitsAndListsByNumberNotByText) {
    // As texts "step-1000000000000.h5" < "step-999999999999.h5".
    for (std::int64_t const step : {2L, 1'000'000'000'000L, 10L, 999'999'999'999L}) commit(step);
    EXPECT_THAT(steps(), ElementsAre(1'000'000'000'000, 999'999'999'999, 10, 2));
    EXPECT_EQ(newest(), 1'000'000'000'000);
    EXPECT_EQ(store.path_of(10).filename(), "step-000000000010.h5");
    EXPECT_TRUE(fs::is_empty(writer));
    EXPECT_EQ(read_file(store.path_of(2), 1 << 20), file_of_step(2));
}

TEST_F(CheckpointStoreTest, FileTimesDoNotMatter) {
    for (std::int64_t const step : {3, 12, 7}) commit(step);
    fs::last_write_time(store.path_of(12), fs::file_time_type::clock::now() - std::chrono::hours(100));
    EXPECT_EQ(newest(), 12);
}

TEST_F(CheckpointStoreTest, ForeignNamesAreIgnored) {
    commit(5);
    fs::path const folder = run.path() / "checkpoints";
    for (char const* name : {"step-000000000009.h5.tmp", "step-9.h5", "step-00000000000x.h5", "step-.h5",
                             "step-h5", "step-0000000000009", "xstep-000000000009.h5", ".nfs0001",
                             "step--00000000009.h5", "step-99999999999999999999.h5", "latest.h5"}) {
        write_bytes(folder / name, file_of_step(9));
    }
    EXPECT_THAT(steps(), ElementsAre(5));
    EXPECT_EQ(newest(DamagedFiles::quarantine), 5);
    store.prune(2, writer);
    EXPECT_TRUE(fs::exists(folder / "step-9.h5"));
}

TEST_F(CheckpointStoreTest, DamagedNewestIsSkippedWithAWarningAndLeftByReaders) {
    for (std::int64_t const step : {1, 2, 3}) commit(step);
    damage(3);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(newest(), 2);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("step-000000000003.h5: damaged"));
    EXPECT_THAT(steps(), ElementsAre(3, 2, 1));
}

TEST_F(CheckpointStoreTest, OwnerSetsDamagedOnesAside) {
    for (std::int64_t const step : {1, 2, 3, 4}) commit(step);
    damage(4);
    fs::resize_file(store.path_of(3), 1000);
    EXPECT_EQ(newest(DamagedFiles::quarantine), 2);
    EXPECT_THAT(steps(), ElementsAre(2, 1));
    EXPECT_TRUE(fs::exists(store.path_of(4).string() + ".bad"));
    EXPECT_TRUE(fs::exists(store.path_of(3).string() + ".bad"));
    std::ifstream file(store.path_of(3).string() + ".bad.reason");
    std::string const reason((std::istreambuf_iterator<char>(file)), {});
    EXPECT_THAT(reason, HasSubstr("step-000000000003.h5: not a complete checkpoint"));
    EXPECT_EQ(newest(DamagedFiles::quarantine), 2);
}

TEST_F(CheckpointStoreTest, WhatIsKnownIsReadAgainOnlyIfItChanged) {
    for (std::int64_t const step : {1, 2}) commit(step);
    auto known = store.read_newest_good(DamagedFiles::leave);
    std::byte const* const bytes = known->file.bytes().data();
    known = store.read_newest_good(DamagedFiles::leave, std::move(known));
    EXPECT_EQ(known->file.bytes().data(), bytes) << "the same memory";
    damage(2);
    known = store.read_newest_good(DamagedFiles::leave, std::move(known));
    EXPECT_EQ(known->step, 1);
    commit(3);
    EXPECT_EQ(store.read_newest_good(DamagedFiles::leave, std::move(known))->step, 3);
}

TEST_F(CheckpointStoreTest, EmptyFilesFoldersAndWrongStepsAreDamage) {
    commit(1);
    write_bytes(store.path_of(7), {});
    fs::create_directory(store.path_of(8));
    write_bytes(store.path_of(9), file_of_step(6));
    ASSERT_EQ(::mkfifo(store.path_of(10).c_str(), 0600), 0);
    EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointStoreTest, NeverStartsFreshWhereAllAreDamaged) {
    commit(1);
    commit(2);
    damage(1);
    damage(2);
    auto const [code, message] = error_of([&] { newest(DamagedFiles::quarantine); });
    EXPECT_EQ(code, ExitCode::do_not_requeue);
    EXPECT_THAT(message, HasSubstr("none of the 2 checkpoints verifies"));
    EXPECT_THAT(steps(), ElementsAre(2, 1)) << "they keep their names";
    fs::rename(store.path_of(1), store.path_of(1).string() + ".bad");
    fs::rename(store.path_of(2), store.path_of(2).string() + ".bad");
    EXPECT_EQ(error_of([&] { newest(); }).first, ExitCode::do_not_requeue);
}

TEST_F(CheckpointStoreTest, NewerFormatStopsTheScan) {
    commit(1);
    auto bytes = file_of_step(2);
    bytes[bytes.size() - 56] = std::byte{format_version + 1};
    test::recompute_digest(bytes);
    write_bytes(store.path_of(2), bytes);
    auto const [code, message] = error_of([&] { newest(DamagedFiles::quarantine); });
    EXPECT_EQ(code, ExitCode::do_not_requeue);
    EXPECT_THAT(message, HasSubstr("newer"));
    EXPECT_TRUE(fs::exists(store.path_of(2)));
}

TEST_F(CheckpointStoreTest, UnreadableIsWorthARetry) {
    commit(1);
    commit(2);
    fs::permissions(store.path_of(2), fs::perms::none);
    fs::permissions(run.path(), static_cast<fs::perms>(0755));
    uid_t const user = ::geteuid();
    if (user == 0) {  // root may read everything, nobody may not
        ASSERT_EQ(::seteuid(65534), 0);
    }
    auto const code = error_of([&] { newest(); }).first;
    ASSERT_EQ(::seteuid(user), 0);
    EXPECT_EQ(code, ExitCode::retry);
}

TEST_F(CheckpointStoreTest, ExplicitFileMustVerify) {
    commit(1);
    EXPECT_TRUE(std::ranges::equal(CheckpointStore::read(store.path_of(1)).bytes(), file_of_step(1)));
    damage(1);
    EXPECT_EQ(error_of([&] { CheckpointStore::read(store.path_of(1)); }).first, ExitCode::do_not_requeue);
    for (fs::path const& path : {run.path() / "nowhere.h5", run.path(), store.path_of(1) / "x"}) {
        auto const [code, message] = error_of([&] { CheckpointStore::read(path); });
        EXPECT_EQ(code, ExitCode::do_not_requeue);
        EXPECT_THAT(message, HasSubstr(path.string()));
    }
}

TEST_F(CheckpointStoreTest, SizeIsLimited) {
    fs::path const path = run.path() / "huge.h5";
    write_bytes(path, {});
    fs::resize_file(path, max_checkpoint_bytes + 1);  // a hole: takes no space
    auto const [code, message] = error_of([&] { CheckpointStore::read(path); });
    EXPECT_EQ(code, ExitCode::do_not_requeue);
    EXPECT_THAT(message, HasSubstr("at most"));
}

TEST_F(CheckpointStoreTest, CommitOfALostOwnerFailsAndLeavesNothing) {
    commit(1);
    fs::remove(writer);
    auto const [code, message] = error_of([&] { commit(2); });
    EXPECT_EQ(code, ExitCode::owned_elsewhere);
    EXPECT_THAT(message, HasSubstr("step 2"));
    EXPECT_THAT(steps(), ElementsAre(1));
}

TEST_F(CheckpointStoreTest, OwnershipLostBetweenWriteAndRename) {
    commit(1);
    auto const take_over = [&] { fs::remove_all(writer); };
    auto const [code, message] = error_of([&] { store.commit(2, file_of_step(2), writer, take_over); });
    EXPECT_EQ(code, ExitCode::owned_elsewhere);
    EXPECT_THAT(steps(), ElementsAre(1));
}

TEST_F(CheckpointStoreTest, FailingLedgerMeansNoCheckpointAndNoTemporaryFile) {
    auto const failing = [] { fail(ExitCode::retry, "no space for the ledger"); };
    auto const [code, message] = error_of([&] { store.commit(2, file_of_step(2), writer, failing); });
    EXPECT_EQ(code, ExitCode::retry);
    EXPECT_THAT(message, AllOf(HasSubstr("step 2"), HasSubstr("no space for the ledger")));
    EXPECT_THAT(steps(), ElementsAre());
    EXPECT_TRUE(fs::is_empty(writer));
    bool seen_durable = false;
    store.commit(2, file_of_step(2), writer,
                 [&] { seen_durable = !fs::exists(store.path_of(2)) && !fs::is_empty(writer); });
    EXPECT_TRUE(seen_durable);
}

TEST_F(CheckpointStoreTest, MissingRunDirectoryIsWorthARetry) {
    fs::path const folder = run.path() / "missing" / "deeper";
    auto const [code, message] =
        error_of([&] { CheckpointStore(folder).commit(3, file_of_step(3), writer); });
    EXPECT_EQ(code, ExitCode::retry);
    EXPECT_THAT(message, HasSubstr("step 3"));
}

TEST_F(CheckpointStoreTest, SameStateCountsAsCommitted) {
    commit(4);
    auto const before = fs::last_write_time(store.path_of(4));
    SmallState same;
    same.step = 4;
    same.settings = "started with other words";
    store.commit(4, same.file(), writer);
    EXPECT_EQ(fs::last_write_time(store.path_of(4)), before);
    EXPECT_EQ(read_file(store.path_of(4), 1 << 20), file_of_step(4));

    same.weight[0] += 1;
    store.commit(4, same.file(), writer);
    EXPECT_EQ(read_file(store.path_of(4), 1 << 20), same.file());

    damage(4);
    store.commit(4, same.file(), writer);
    EXPECT_EQ(read_file(store.path_of(4), 1 << 20), same.file());
}

TEST_F(CheckpointStoreTest, LinkInPlaceOfTheTemporaryFileIsNotFollowed) {
    fs::path const victim = run.path() / "victim";
    write_bytes(victim, file_of_step(1));
    fs::create_symlink(victim, writer / "step-000000000002.h5.tmp");
    commit(2);
    EXPECT_EQ(read_file(victim, 1 << 20), file_of_step(1));
    EXPECT_FALSE(fs::is_symlink(store.path_of(2)));
}

TEST_F(CheckpointStoreTest, ModeFollowsUmask) {
    mode_t const before = ::umask(027);
    commit(1);
    ::umask(before);
    EXPECT_EQ(fs::status(store.path_of(1)).permissions(), static_cast<fs::perms>(0640));
}

TEST_F(CheckpointStoreTest, PruneKeepsTheNewestGoodOnesAndNeverFewerThanTwo) {
    for (std::int64_t step = 1; step <= 6; ++step) commit(step);
    store.prune(4, writer);
    EXPECT_THAT(steps(), ElementsAre(6, 5, 4, 3));
    store.prune(0, writer);
    EXPECT_THAT(steps(), ElementsAre(6, 5));
    store.prune(1, writer);
    EXPECT_THAT(steps(), ElementsAre(6, 5));
}

TEST_F(CheckpointStoreTest, PruneDoesNotCountDamagedOnes) {
    for (std::int64_t step = 1; step <= 5; ++step) commit(step);
    damage(5);
    damage(3);
    CheckpointStore fresh(run.path());
    fresh.prune(2, writer);
    EXPECT_THAT(steps(), ElementsAre(5, 4, 3, 2));
}

TEST_F(CheckpointStoreTest, ALaunchThatWasWrittenOffDeletesNothing) {
    for (std::int64_t step = 1; step <= 3; ++step) commit(step);
    fs::remove_all(writer);
    store.prune(2, writer);
    EXPECT_THAT(steps(), ElementsAre(3, 2, 1));
}

TEST(AppendedFile, AppendsRowsAndEndsACutOffOne) {
    TemporaryFolder folder;
    fs::path const path = folder.path() / "ledger.jsonl";
    {
        AppendedFile file(path, 100, folder.path());
        EXPECT_EQ(file.text(), "");
        file.append_line(R"({"a":1})");
        file.append_line(R"({"a":2})");
        file.sync();
        EXPECT_EQ(text_of(path), "{\"a\":1}\n{\"a\":2}\n");
        std::ofstream(path, std::ios::app) << "{\"a\":";
        file.append_line(R"({"a":3})");
        EXPECT_EQ(text_of(path), "{\"a\":1}\n{\"a\":2}\n{\"a\":\n{\"a\":3}\n");
    }
    AppendedFile again(path, 100, folder.path());
    again.append_line(R"({"a":4})");
    EXPECT_EQ(text_of(path), again.text());
    EXPECT_THAT(again.text(), ::testing::EndsWith("{\"a\":3}\n{\"a\":4}\n"));
    EXPECT_THROW(AppendedFile(path, 10, folder.path()), Error) << "larger than it may be";
    EXPECT_THROW(AppendedFile(folder.path() / "none" / "x", 10, folder.path()), Error);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(AppendedFile, WhatIsAppendedAfterATakeoverIsNotSeen) {
    TemporaryFolder run;
    fs::path const path = run.path() / "ledger.jsonl", older = run.path() / "1", newer = run.path() / "2";
    fs::create_directory(older);
    fs::create_directory(newer);
    AppendedFile stopped(path, 100, older);
    stopped.append_line("before");
    fs::remove(older);
    AppendedFile owner(path, 100, newer);
    stopped.append_line("after");
    stopped.sync();
    owner.append_line("owner");
    EXPECT_EQ(text_of(path), "before\nowner\n");
    test::expect_error([&] { AppendedFile(path, 100, older); }, {"taken this run over"},
                       ExitCode::owned_elsewhere);
    EXPECT_EQ(text_of(path), "before\nowner\n");
}

TEST(DurableFile, ReplacesATextAsAWhole) {
    TemporaryFolder folder;
    fs::path const path = folder.path() / "outcome.json";
    write_file_durably(path, "first, longer", folder.path());
    write_file_durably(path, "second", folder.path());
    EXPECT_EQ(text_of(path), "second");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace holdfast::checkpoint
