// SPDX-License-Identifier: Apache-2.0
#include "train/ledger.hpp"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <sys/resource.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/digest.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace holdfast::train {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// 47 samples an epoch in 4 steps of 15, the last of 2.
RunShape const shape{47, 4, 15, false};

Position at(std::int64_t step) { return {step, step / 4, step % 4 * 15}; }

/// A digest that says what it is of.
std::string digest(std::string_view of) {
    return digest_of(std::as_bytes(std::span(of.data(), of.size()))).hex();
}

std::string file_digest(std::int64_t step) { return digest(fmt::format("file of step {}", step)); }

LedgerRow checkpoint_row(std::int64_t first_step, std::int64_t end_step) {
    LedgerRow row;
    row.kind = end_step == 0 ? RowKind::start : RowKind::checkpoint;
    row.parent = end_step == 0 ? "" : file_digest(first_step);
    row.first = at(first_step);
    row.end = at(end_step);
    row.digest = file_digest(end_step);
    row.parameters = digest(fmt::format("parameters of step {}", end_step));
    return row;
}

LedgerRow digest_row(std::int64_t step) {
    LedgerRow row = checkpoint_row(0, step);
    row.kind = RowKind::digest;
    return row;
}

LedgerRow import_row(std::int64_t step) {
    LedgerRow row = checkpoint_row(step, step);
    row.kind = RowKind::import;
    row.parent = digest("the original");
    row.source = "/elsewhere/step.h5";
    return row;
}

class LedgerTest : public testing::Test {
  protected:
    std::string text() const {
        std::ifstream file(path());
        return {std::istreambuf_iterator<char>(file), {}};
    }
    std::vector<std::string> lines() const {
        std::ifstream file(path());
        std::vector<std::string> all;
        for (std::string line; std::getline(file, line);) all.push_back(line);
        return all;
    }
    void write(std::vector<std::string> const& all) const {
        std::ofstream file(path());
        for (std::string const& line : all) file << line << '\n';
    }
    void append_text(std::string const& piece) const { std::ofstream(path(), std::ios::app) << piece; }

    Ledger launch(std::int64_t number, std::int64_t ranks) const {
        return Ledger(path(), {number, {fmt::format("host{}", number)}, ranks}, path().parent_path());
    }
    /// Launch 1 on 2 ranks to step 5, 2 on 3 ranks to step 6 and some lost work, 3 on 1 rank to step 12; a digest in between.
    void write_three_launches() {
        Ledger first = launch(1, 2);
        first.append(checkpoint_row(0, 0));
        first.append(checkpoint_row(0, 4));
        first.append(checkpoint_row(4, 5));
        Ledger second = launch(2, 3);
        second.append(checkpoint_row(5, 6));
        second.append(checkpoint_row(6, 8));
        Ledger third = launch(3, 1);
        third.append(digest_row(7));
        third.append(checkpoint_row(6, 9));
        third.append(checkpoint_row(9, 12));
    }
    ChainReport check(std::int64_t step = 12) const {
        return check_chain(read_ledger(path()), file_digest(step), at(step), shape);
    }
    fs::path path() const { return folder_.path() / "ledger.jsonl"; }

  private:
    test::TemporaryFolder folder_;
};

TEST_F(LedgerTest, RowsComeBack) {
    LedgerRow row = import_row(7);
    row.launch = 3;
    row.hosts = {"a", "b \"quoted\" \\ é"};
    row.ranks = 6;
    row.previous = digest("row");
    LedgerText const back = parse_ledger(to_line(row) + "\n");
    ASSERT_THAT(back.rows, SizeIs(1));
    EXPECT_THAT(back.torn, IsEmpty());
    LedgerRow const& copy = back.rows.front();
    EXPECT_TRUE(copy.is_intact);
    EXPECT_EQ(copy.kind, row.kind);
    EXPECT_EQ(copy.launch, row.launch);
    EXPECT_EQ(copy.hosts, row.hosts);
    EXPECT_EQ(copy.ranks, row.ranks);
    EXPECT_EQ(copy.parent, row.parent);
    EXPECT_EQ(copy.source, row.source);
    EXPECT_EQ(copy.first, row.first);
    EXPECT_EQ(copy.end, row.end);
    EXPECT_EQ(copy.digest, row.digest);
    EXPECT_EQ(copy.parameters, row.parameters);
    EXPECT_EQ(copy.previous, row.previous);
    EXPECT_EQ(to_line(copy), to_line(row));
}

TEST_F(LedgerTest, TheCheckIsOverAllBytesBeforeIt) {
    // The very rule of docs/checkpoint-format.md, for readers in other languages.
    std::string const line = to_line(checkpoint_row(0, 4));
    std::size_t const covered = line.rfind(",\"check\":\"");
    ASSERT_NE(covered, std::string::npos);
    EXPECT_EQ(line.substr(covered), ",\"check\":\"" + digest(line.substr(0, covered)) + "\"}");
}

TEST_F(LedgerTest, HostNamesThatAreNoTextDoNotStopTheRun) {
    LedgerRow row = checkpoint_row(0, 4);
    row.hosts = {"\xff\xfe"};
    EXPECT_TRUE(parse_ledger(to_line(row)).rows.at(0).is_intact);
}

TEST_F(LedgerTest, ProvesThreeLaunchesAndCountsLostWork) {
    write_three_launches();
    ChainReport const report = check();
    EXPECT_THAT(report.findings, IsEmpty());
    EXPECT_THAT(report.notes, IsEmpty());
    ASSERT_THAT(report.path, SizeIs(6));
    EXPECT_EQ(report.path.front().kind, RowKind::start);
    EXPECT_EQ(report.num_discarded, 1);
    EXPECT_EQ(report.num_digests, 1);
    ASSERT_THAT(report.epochs, SizeIs(3));
    for (EpochShare const& share : report.epochs) {
        EXPECT_EQ(share.first_sample, 0);
        EXPECT_EQ(share.end_sample, 47);
        EXPECT_TRUE(share.is_complete);
    }
    EXPECT_THAT(report.epochs[0].launches, ElementsAre(1));
    EXPECT_THAT(report.epochs[1].launches, ElementsAre(1, 2, 3));
    EXPECT_THAT(report.epochs[1].ranks, ElementsAre(2, 3, 1));
    EXPECT_THAT(report.epochs[2].launches, ElementsAre(3));
}

TEST_F(LedgerTest, AnOpenEpochAndAnOlderCheckpoint) {
    write_three_launches();
    ChainReport const report = check(6);
    EXPECT_THAT(report.findings, IsEmpty());
    ASSERT_THAT(report.epochs, SizeIs(2));
    EXPECT_TRUE(report.epochs[0].is_complete);
    EXPECT_FALSE(report.epochs[1].is_complete);
    EXPECT_EQ(report.epochs[1].end_sample, 30);
    EXPECT_EQ(report.num_discarded, 3);
}

TEST_F(LedgerTest, NoEpochFinishedYet) {
    Ledger ledger = launch(1, 1);
    ledger.append(checkpoint_row(0, 0));
    RunShape unknown = shape;
    unknown.samples_per_epoch = 0;
    EXPECT_THAT(check_chain(read_ledger(path()), file_digest(0), at(0), unknown).findings, IsEmpty());
    EXPECT_THAT(check_chain(read_ledger(path()), file_digest(0), at(0), unknown).epochs, IsEmpty());
    ledger.append(checkpoint_row(0, 3));
    ChainReport const report = check_chain(read_ledger(path()), file_digest(3), at(3), unknown);
    EXPECT_THAT(report.findings, IsEmpty());
    ASSERT_THAT(report.epochs, SizeIs(1));
    EXPECT_EQ(report.epochs[0].end_sample, 45);
    EXPECT_FALSE(report.epochs[0].is_complete);
}

TEST_F(LedgerTest, TheSameStepAgainAfterItsEvaluation) {
    // A stop during the evaluation leaves an open epoch; the next launch closes it and saves the step once more.
    launch(1, 1).append(checkpoint_row(0, 0));
    launch(1, 1).append(checkpoint_row(0, 4));
    LedgerRow evaluated = checkpoint_row(4, 4);
    evaluated.kind = RowKind::checkpoint;
    evaluated.digest = digest("step 4 with its evaluation");
    launch(2, 3).append(evaluated);
    ChainReport const report = check_chain(read_ledger(path()), evaluated.digest, at(4), shape);
    EXPECT_THAT(report.findings, IsEmpty());
    EXPECT_THAT(report.path, SizeIs(3));
    EXPECT_THAT(report.epochs.at(0).launches, ElementsAre(1));
}

TEST(Position, AtTheEndOfAnEpochIsTheBeginningOfTheNext) {
    EXPECT_EQ(position_at(5, 4, 15), (Position{5, 1, 15}));
    EXPECT_EQ(position_at(4, 4, 0), (Position{4, 1, 0}));
    EXPECT_EQ(position_at(4, 4, 47), (Position{4, 1, 0}));
    EXPECT_EQ(position_at(0, 4, 0), (Position{}));
}

TEST_F(LedgerTest, OneRowOverSeveralEpochs) {
    Ledger ledger = launch(1, 1);
    ledger.append(checkpoint_row(0, 0));
    ledger.append(checkpoint_row(0, 2));
    ledger.append(checkpoint_row(2, 13));
    ChainReport const report = check(13);
    EXPECT_THAT(report.findings, IsEmpty());
    ASSERT_THAT(report.epochs, SizeIs(4));
    for (int epoch = 0; epoch < 3; ++epoch) {
        EXPECT_EQ(report.epochs[static_cast<std::size_t>(epoch)].epoch, epoch);
        EXPECT_TRUE(report.epochs[static_cast<std::size_t>(epoch)].is_complete);
    }
    EXPECT_EQ(report.epochs[3].end_sample, 15);
    EXPECT_FALSE(report.epochs[3].is_complete);
}

TEST_F(LedgerTest, EveryRemovedRowIsFound) {
    write_three_launches();
    std::vector<std::string> const all = lines();
    for (std::size_t removed = 0; removed < all.size(); ++removed) {
        std::vector<std::string> left = all;
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(removed));
        write(left);
        std::vector<std::string> const findings = check().findings;
        ASSERT_FALSE(findings.empty()) << "row " << removed + 1;
        // It is named by the row that is now in its place, or by the checkpoint without one.
        std::string const place =
            removed + 1 == all.size() ? "the newest good checkpoint" : fmt::format("line {} ", removed + 1);
        EXPECT_THAT(findings, Contains(HasSubstr(place))) << "row " << removed + 1;
        EXPECT_THAT(findings, Contains(HasSubstr("removed"))) << "row " << removed + 1;
    }
}

TEST_F(LedgerTest, EveryDoubledRowIsFound) {
    write_three_launches();
    std::vector<std::string> const all = lines();
    for (std::size_t doubled = 0; doubled < all.size(); ++doubled)
        for (std::size_t where = doubled + 1; where <= all.size(); ++where) {
            std::vector<std::string> more = all;
            more.insert(more.begin() + static_cast<std::ptrdiff_t>(where), all[doubled]);
            write(more);
            EXPECT_THAT(check().findings, Contains(AllOf(HasSubstr(fmt::format("line {} ", where + 1)),
                                                         HasSubstr(fmt::format("is line {} ", doubled + 1)),
                                                         HasSubstr("doubled"))));
        }
}

TEST_F(LedgerTest, EveryMovedRowIsFound) {
    write_three_launches();
    std::vector<std::string> const all = lines();
    for (std::size_t from = 0; from + 1 < all.size(); ++from) {
        std::vector<std::string> moved = all;
        std::swap(moved[from], moved[from + 1]);
        write(moved);
        EXPECT_THAT(check().findings, Contains(HasSubstr(fmt::format("line {} ", from + 1)))) << from;
    }
}

TEST_F(LedgerTest, EveryEditedByteIsFound) {
    write_three_launches();
    std::string const before = text();
    ASSERT_THAT(check().findings, IsEmpty());
    for (std::size_t i = 0; i < before.size(); ++i) {
        std::string edited = before;
        edited[i] = edited[i] == '1' ? '2' : '1';
        std::int64_t const line =
            1 + std::count(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(i), '\n');
        // A row that is none any more, or two that became one, are missed by the next row, or by the checkpoint.
        std::vector<std::string> const findings =
            check_chain(parse_ledger(edited), file_digest(12), at(12), shape).findings;
        EXPECT_THAT(findings, Contains(AnyOf(HasSubstr(fmt::format("line {} ", line)),
                                             HasSubstr(fmt::format("line {} ", line + 1)),
                                             HasSubstr("the newest good checkpoint"))))
            << "byte " << i;
    }
}

TEST_F(LedgerTest, TextBehindARowIsAnEdit) {
    std::string const line = to_line(checkpoint_row(0, 4));
    for (std::string const& edited :
         {line + " ", line + "\r", line.substr(0, line.size() - 1) + ",\"launch\":7}"}) {
        LedgerText const ledger = parse_ledger(edited + "\n");
        ASSERT_THAT(ledger.rows, SizeIs(1)) << edited;
        EXPECT_FALSE(ledger.rows.front().is_intact) << edited;
    }
}

/// What somebody may write who also computes the checks anew.
class ForgedLedgerTest : public LedgerTest {
  protected:
    void forge(std::size_t index, std::function<void(LedgerRow&)> const& edit) {
        fs::remove(path());
        write_three_launches();
        std::vector<LedgerRow> rows = read_ledger(path()).rows;
        edit(rows[index]);
        std::vector<std::string> all;
        std::string previous;
        for (LedgerRow& row : rows) {
            row.previous = previous;
            all.push_back(to_line(row));
            previous = parse_ledger(all.back()).rows.at(0).check;
        }
        write(all);
    }
};

TEST_F(ForgedLedgerTest, NothingEditedIsNothingFound) {
    forge(2, [](LedgerRow&) {});
    EXPECT_THAT(check().findings, IsEmpty());
}

TEST_F(ForgedLedgerTest, SamplesTwiceOrNever) {
    forge(3, [](LedgerRow& row) { row.first = at(4); });
    EXPECT_THAT(
        check().findings,
        ElementsAre(AllOf(HasSubstr("line 4 (checkpoint of step 6, launch 2) begins at step 4, epoch 1, "
                                    "sample 0, but line 3"),
                          HasSubstr("twice, or never"))));
    forge(6, [](LedgerRow& row) { row.first = at(8); });
    EXPECT_THAT(check().findings,
                ElementsAre(HasSubstr("line 7 (checkpoint of step 9, launch 3) begins at step 8")));
    forge(1, [](LedgerRow& row) { row.end.sample = 15; });
    EXPECT_THAT(check().findings,
                Contains(HasSubstr("line 2 (checkpoint of step 4, launch 1): step 4, epoch 1, sample "
                                   "15 do not fit each other")));
}

TEST_F(ForgedLedgerTest, AnEndThatIsNotTheCheckpoints) {
    forge(7, [](LedgerRow& row) { row.end = at(13); });
    EXPECT_THAT(check().findings,
                ElementsAre(HasSubstr("ends at step 13, epoch 3, sample 15, but the checkpoint is at "
                                      "step 12")));
}

TEST_F(ForgedLedgerTest, BackwardsAndOnTheSpot) {
    forge(7, [](LedgerRow& row) { row.end = at(8); });
    EXPECT_THAT(check().findings, Contains(HasSubstr("goes from step 9, epoch 2, sample 15 to step 8")));
    forge(0, [](LedgerRow& row) { row.end = at(4); });
    EXPECT_THAT(check().findings, Contains(HasSubstr("line 1 (start of step 4, launch 1): goes from")));
    forge(0, [](LedgerRow& row) { row.first = row.end = at(4); });
    EXPECT_THAT(check().findings, Contains(HasSubstr("but a run begins at step 0")));
}

TEST_F(ForgedLedgerTest, AParentThatIsNot) {
    for (std::string const& parent : {std::string(), digest("nothing"), file_digest(12)}) {
        forge(3, [&](LedgerRow& row) { row.parent = parent; });
        EXPECT_THAT(check().findings, Contains(AllOf(HasSubstr("line 4"), HasSubstr("parent")))) << parent;
    }
}

TEST_F(ForgedLedgerTest, HugeNumbers) {
    for (std::int64_t const number : {std::int64_t{1} << 53, std::int64_t{1} << 52}) {
        forge(7, [&](LedgerRow& row) { row.end = {number, number / 4, number}; });
        EXPECT_FALSE(check().is_proved());
        forge(7, [&](LedgerRow& row) { row.first = {number, number, number}; });
        EXPECT_FALSE(check().is_proved());
    }
}

TEST_F(ForgedLedgerTest, StepsComputedTwiceMustHaveGivenTheSame) {
    forge(5, [](LedgerRow& row) {
        row.end = at(8);
        row.parameters = digest("other parameters");
    });
    EXPECT_THAT(check().findings,
                ElementsAre(AllOf(HasSubstr("step 8"), HasSubstr("launch 2 on host2 (line 5)"),
                                  HasSubstr("launch 3 on host3 (line 6)"), HasSubstr("replay"))));
    RunShape changed = shape;
    changed.platform_changed = true;
    ChainReport const report = check_chain(read_ledger(path()), file_digest(12), at(12), changed);
    EXPECT_THAT(report.findings, IsEmpty());
    EXPECT_THAT(report.notes, ElementsAre(HasSubstr("--allow-platform-change")));
}

TEST_F(LedgerTest, ACutOffRowIsSurvived) {
    std::string const line = to_line(checkpoint_row(12, 13));
    for (std::size_t const length : {std::size_t{1}, line.size() / 2, line.size() - 1}) {
        fs::remove(path());
        write_three_launches();
        append_text(line.substr(0, length));
        EXPECT_THAT(check().findings, IsEmpty()) << length;
        EXPECT_THAT(read_ledger(path()).torn, ElementsAre(9)) << length;
        launch(4, 5).append(checkpoint_row(12, 13));
        launch(5, 5).append(checkpoint_row(13, 14));
        EXPECT_THAT(check(14).findings, IsEmpty()) << length << "\n" << text();
        EXPECT_THAT(read_ledger(path()).torn, ElementsAre(9)) << length;
        EXPECT_THAT(check(14).path, SizeIs(8)) << length;
    }
}

TEST_F(LedgerTest, ARowThatLostOnlyItsLineFeedIsARow) {
    Ledger first = launch(1, 1);
    first.append(checkpoint_row(0, 0));
    std::string all = text();
    all.pop_back();
    std::ofstream(path()) << all;
    launch(2, 1).append(checkpoint_row(0, 4));
    EXPECT_THAT(check(4).findings, IsEmpty()) << text();
    EXPECT_THAT(check(4).path, SizeIs(2));
}

TEST_F(LedgerTest, PagesThatAPowerCutLostAreSurvived) {
    // Digests are not synced: of several the earlier can be lost and the later not.
    launch(1, 1).append(checkpoint_row(0, 0));
    Ledger second = launch(2, 1);
    second.append(digest_row(1));
    second.append(digest_row(2));
    std::vector<std::string> all = lines();
    for (std::size_t const lost : {all[1].size(), all[1].size() / 2}) {
        std::vector<std::string> damaged = all;
        damaged[1].replace(0, lost, std::string(lost, '\0'));
        write(damaged);
        launch(3, 1).append(checkpoint_row(0, 4));
        EXPECT_THAT(check(4).findings, IsEmpty()) << text();
        EXPECT_THAT(read_ledger(path()).torn, ElementsAre(2));
    }
    all[1] = "edited away";
    write(all);
    EXPECT_THAT(check(0).findings,
                ElementsAre(HasSubstr("line 3 (digest of step 2, launch 2) does not follow")));
}

TEST_F(LedgerTest, AnOwnerThatHadLostTheRunAddsNothing) {
    Ledger stale = launch(1, 1);
    stale.append(checkpoint_row(0, 0));
    Ledger owner = launch(2, 1);
    owner.append(checkpoint_row(0, 4));
    stale.append(checkpoint_row(0, 3));
    stale.append(digest_row(3));
    owner.append(checkpoint_row(4, 8));
    EXPECT_THAT(check(8).findings, IsEmpty()) << text();
    EXPECT_EQ(check(8).num_discarded, 0);
    EXPECT_THAT(lines(), SizeIs(3));
}

TEST_F(LedgerTest, AFailedAppendCanBeTriedAgain) {
    Ledger ledger = launch(1, 1);
    ledger.append(checkpoint_row(0, 0));
    // Half a row fits on the disk.
    struct rlimit before {};
    ::getrlimit(RLIMIT_FSIZE, &before);
    auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
    struct rlimit const full{text().size() + 50, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &full);
    test::expect_error([&] { ledger.append(checkpoint_row(0, 3)); }, {"ledger.jsonl"}, ExitCode::retry);
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_THAT(read_ledger(path()).torn, ElementsAre(2));
    ledger.append(checkpoint_row(0, 3));
    EXPECT_THAT(check(3).findings, IsEmpty()) << text();
    // The row was written, but syncing the file failed.
    ledger.append(checkpoint_row(0, 3));
    EXPECT_THAT(check(3).findings, IsEmpty()) << "the same row again is no doubled one\n" << text();
    EXPECT_EQ(check(3).num_discarded, 1);
}

TEST_F(LedgerTest, BeginsWithAFileFromElsewhere) {
    Ledger ledger = launch(1, 4);
    ledger.append(import_row(6));
    ledger.append(checkpoint_row(6, 8));
    ChainReport const report = check(8);
    EXPECT_THAT(report.findings, IsEmpty());
    EXPECT_EQ(report.path.front().source, "/elsewhere/step.h5");
    ASSERT_THAT(report.epochs, SizeIs(1));
    EXPECT_EQ(report.epochs[0].first_sample, 30);
    EXPECT_EQ(report.epochs[0].end_sample, 47);
    EXPECT_FALSE(report.epochs[0].is_complete) << "the beginning was consumed elsewhere";
}

TEST_F(LedgerTest, AFileFromElsewhereThatIsItsOwnGoesOnWithItsOwnPast) {
    write_three_launches();
    LedgerRow row = import_row(9);
    row.parent = file_digest(9);
    launch(4, 2).append(row);
    launch(5, 2).append(checkpoint_row(9, 14));
    ChainReport const report = check(14);
    EXPECT_THAT(report.findings, IsEmpty());
    EXPECT_EQ(report.path.front().kind, RowKind::start);
    EXPECT_TRUE(report.epochs.at(2).is_complete);
    EXPECT_THAT(report.epochs.at(2).launches, ElementsAre(3, 5));
    EXPECT_EQ(report.num_discarded, 2);
}

TEST_F(LedgerTest, WithoutARowNothingIsProved) {
    EXPECT_THAT(read_ledger(path()).rows, IsEmpty());
    EXPECT_THAT(check(4).findings, ElementsAre(HasSubstr("the newest good checkpoint")));
}

TEST_F(LedgerTest, WhatIsNoRow) {
    std::string const line = to_line(checkpoint_row(0, 4));
    auto const with = [&](std::string const& from, std::string const& to) {
        std::string edited = line;
        EXPECT_NE(edited.find(from), std::string::npos) << from;
        return edited.replace(edited.find(from), from.size(), to);
    };
    std::vector<std::string> const bad{"x",
                                       "{}",
                                       "[]",
                                       "null",
                                       "7",
                                       "\"text\"",
                                       std::string(100'000, '['),
                                       "\xff",
                                       with("\"launch\":0", "\"launch\":-1"),
                                       with("\"launch\":0", "\"launch\":1.5"),
                                       with("\"launch\":0", "\"launch\":9223372036854775807"),
                                       with("\"launch\":0", "\"launch\":18446744073709551615"),
                                       with("\"launch\":0", "\"launch\":1e400"),
                                       with("\"launch\":0", "\"launch\":\"0\""),
                                       with("\"hosts\":[]", "\"hosts\":7"),
                                       with("\"hosts\":[]", "\"hosts\":[7]"),
                                       with("\"kind\":\"checkpoint\"", "\"kind\":\"other\""),
                                       with("\"kind\"", "\"kinds\""),
                                       with("\"first_step\":0,", ""),
                                       with("\"digest\":\"", "\"digest\":\"z"),
                                       with("\"parameters\":\"", "\"parameters\":\"0")};
    for (std::string const& text : bad) {
        LedgerText const ledger = parse_ledger(text + "\n" + line + "\n");
        EXPECT_THAT(ledger.torn, ElementsAre(1)) << text.substr(0, 200);
        EXPECT_THAT(ledger.rows, SizeIs(1)) << text.substr(0, 200);
    }
    EXPECT_THAT(parse_ledger("").rows, IsEmpty());
    EXPECT_THAT(parse_ledger("\n\n").torn, IsEmpty());
}

TEST_F(LedgerTest, AnEpochThatIsNotOfItsSteps) {
    write_three_launches();
    for (std::int64_t const samples : {46, 60, 45, 61, 1, 470}) {
        RunShape other = shape;
        other.samples_per_epoch = samples;
        bool const fits = samples > 45 && samples <= 60;
        EXPECT_EQ(check_chain(read_ledger(path()), file_digest(12), at(12), other).is_proved(), fits)
            << samples;
    }
}

TEST(RunShape, OfNothingIsRefused) {
    for (RunShape const& wrong :
         {RunShape{47, 0, 15, false}, RunShape{47, 4, 0, false}, RunShape{-1, 4, 15, false}})
        test::expect_error([&] { check_chain({}, file_digest(0), {}, wrong); }, {"cannot be"});
}

}  // namespace
}  // namespace holdfast::train
