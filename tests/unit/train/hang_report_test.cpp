// SPDX-License-Identifier: Apache-2.0
#include "train/hang_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace holdfast::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double deadline = 60;

RankReport rank_in(Phase phase, int rank, double seconds = 61) {
    RankReport report;
    report.rank = rank;
    report.pid = 1000 + rank;
    report.phase = phase;
    report.step = 17;
    report.seconds = seconds;
    report.is_waiting = phase == Phase::exchange;
    return report;
}

RankReport waiting_in(Phase phase, int rank) {
    RankReport report = rank_in(phase, rank);
    report.is_waiting = true;
    return report;
}

RankReport stopped_in(Phase phase, int rank) {
    RankReport report = rank_in(phase, rank);
    report.silent_s = report.seconds;
    report.process_state = "is stopped";
    return report;
}

HostReport host_of(std::vector<RankReport> ranks) { return {deadline, 10 * deadline, std::move(ranks)}; }

std::vector<int> numbers(std::vector<RankReport> const& ranks) {
    std::vector<int> numbers;
    for (RankReport const& rank : ranks) numbers.push_back(rank.rank);
    return numbers;
}

std::vector<HostRanks> const one_host{{"n1", 0, 3}};
std::vector<HostRanks> const two_hosts{{"n1", 0, 2}, {"n2", 2, 2}};

Judgement judge_one(std::vector<RankReport> ranks) { return judge(one_host, {host_of(std::move(ranks))}); }

TEST(Judge, BlamesWhoComputesWhileTheOthersWaitInTheExchange) {
    Judgement const judgement =
        judge_one({rank_in(Phase::exchange, 0), rank_in(Phase::compute, 1), rank_in(Phase::exchange, 2)});
    EXPECT_THAT(numbers(judgement.hanging), ElementsAre(1));
    EXPECT_THAT(numbers(judgement.waiting), ElementsAre(0, 2));
}

TEST(Judge, BlamesAStoppedProcessInWhateverPhase) {
    for (Phase const phase : {Phase::start, Phase::data, Phase::compute, Phase::exchange, Phase::record,
                              Phase::evaluate, Phase::check, Phase::save, Phase::shutdown}) {
        Judgement const judgement =
            judge_one({waiting_in(phase, 0), stopped_in(phase, 1), waiting_in(phase, 2)});
        EXPECT_THAT(numbers(judgement.hanging), ElementsAre(1)) << name_of(phase);
        EXPECT_THAT(numbers(judgement.waiting), ElementsAre(0, 2)) << name_of(phase);
    }
}

TEST(Judge, ARankThatHasBeenSilentOnlyForAMomentIsNotStopped) {
    RankReport busy = rank_in(Phase::exchange, 0);
    busy.silent_s = deadline / 2 - 1;
    Judgement const judgement = judge_one({busy, rank_in(Phase::compute, 1), rank_in(Phase::exchange, 2)});
    EXPECT_THAT(numbers(judgement.hanging), ElementsAre(1));
}

TEST(Judge, WithAStoppedProcessThereTheOthersWait) {
    // Rank 0 would write the step's records if the disk let it; but rank 1 is why the launch stands.
    Judgement const judgement =
        judge_one({rank_in(Phase::record, 0), stopped_in(Phase::compute, 1), rank_in(Phase::exchange, 2)});
    EXPECT_THAT(numbers(judgement.hanging), ElementsAre(1));
    EXPECT_THAT(numbers(judgement.waiting), ElementsAre(2, 0));
}

TEST(Judge, InTheSamePhaseBlamesWhoHasNotDoneItsPart) {
    Judgement const judgement =
        judge_one({rank_in(Phase::save, 0), waiting_in(Phase::save, 1), waiting_in(Phase::save, 2)});
    EXPECT_THAT(numbers(judgement.hanging), ElementsAre(0));
    EXPECT_THAT(numbers(judgement.waiting), ElementsAre(1, 2));
}

TEST(Judge, RanksThatGetOnAreNeitherHangingNorWaiting) {
    Judgement const judgement = judge_one(
        {rank_in(Phase::compute, 0, 1), rank_in(Phase::exchange, 1, 1), rank_in(Phase::compute, 2)});
    EXPECT_THAT(numbers(judgement.hanging), ElementsAre(2));
    EXPECT_THAT(judgement.waiting, IsEmpty());
}

TEST(Judge, BlamesACheckpointWriterOnlyPastItsOwnDeadline) {
    RankReport root = rank_in(Phase::exchange, 0, 0.25);
    root.saving = 12;
    root.saving_s = 10 * deadline - 1;
    EXPECT_THAT(judge_one({root, rank_in(Phase::compute, 1)}).hanging.front().rank, 1);
    root.saving_s = 10 * deadline;
    Judgement const judgement = judge_one({root, rank_in(Phase::exchange, 1, 0.25)});
    EXPECT_THAT(numbers(judgement.hanging), ElementsAre(0));
    EXPECT_THAT(explain(judgement, one_host, 600, ""),
                HasSubstr("rank 0 on n1 hangs in save of step 12 for 600 s"));
}

TEST(Judge, NamesAHostThatWroteNoReport) {
    Judgement const judgement =
        judge(two_hosts, {host_of({rank_in(Phase::exchange, 0), rank_in(Phase::exchange, 1)}), std::nullopt});
    EXPECT_THAT(judgement.hanging, IsEmpty());
    EXPECT_THAT(numbers(judgement.waiting), ElementsAre(0, 1));
    EXPECT_THAT(
        explain(judgement, two_hosts, deadline, "/run/hang"),
        AllOf(HasSubstr("host n2 (ranks 2, 3) has written no report"), HasSubstr("; ranks 0, 1 wait ("),
              HasSubstr("without n2 if it happens there again"), EndsWith("details: /run/hang")));
}

TEST(Judge, TakesTheCulpritFromTheOtherHostsReport) {
    Judgement const judgement =
        judge(two_hosts, {host_of({rank_in(Phase::exchange, 0), rank_in(Phase::exchange, 1)}),
                          host_of({stopped_in(Phase::compute, 2), rank_in(Phase::exchange, 3)})});
    EXPECT_THAT(numbers(judgement.hanging), ElementsAre(2));
    EXPECT_THAT(numbers(judgement.waiting), ElementsAre(0, 1, 3));
    EXPECT_THAT(
        explain(judgement, two_hosts, deadline, ""),
        AllOf(HasSubstr("rank 2 on n2 hangs in compute of step 17 for 61 s (process 1002 is stopped)"),
              HasSubstr("ranks 0, 1, 3 wait"), HasSubstr("without n2"), Not(HasSubstr("details"))));
}

TEST(Explain, WhereAllRunAndWaitTheNetworkIsBroken) {
    Judgement const judgement =
        judge(two_hosts, {host_of({rank_in(Phase::exchange, 0), rank_in(Phase::exchange, 1)}),
                          host_of({rank_in(Phase::exchange, 2), rank_in(Phase::exchange, 3)})});
    EXPECT_THAT(judgement.hanging, IsEmpty());
    EXPECT_THAT(explain(judgement, two_hosts, deadline, ""),
                HasSubstr("all ranks run and wait for each other in exchange of step 17: the network between "
                          "the hosts n1 (ranks 0, 1), n2 (ranks 2, 3) is broken"));
}

TEST(Explain, ClaimsNothingAboutHostsItCouldNotHearOf) {
    Judgement judgement =
        judge(two_hosts, {host_of({waiting_in(Phase::start, 0), waiting_in(Phase::start, 1)}), std::nullopt});
    judgement.silent_hosts.clear();
    judgement.knows_all_hosts = false;
    EXPECT_THAT(explain(judgement, two_hosts, deadline, ""),
                AllOf(HasSubstr("ranks 0, 1 on n1 wait for others in start, of which nothing is known"),
                      Not(HasSubstr("network"))));
}

TEST(Explain, KeepsTheLineShort) {
    std::vector<HostRanks> const big{{"n1", 0, 256}};
    std::vector<RankReport> ranks;
    for (int rank = 0; rank < 256; ++rank)
        ranks.push_back(rank % 2 == 0 && rank < 20 ? rank_in(Phase::compute, rank)
                                                   : rank_in(Phase::exchange, rank));
    std::string const line = explain(judge(big, {host_of(ranks)}), big, deadline, "");
    EXPECT_THAT(line, AllOf(HasSubstr("rank 4 on n1"), Not(HasSubstr("rank 6 on n1")),
                            HasSubstr("7 more ranks hang"), HasSubstr("17, 19-255 wait")));
}

TEST(UniqueHosts, TellsMachinesOfOneNameApart) {
    auto const hosts = unique_hosts({"node", "node", "other", "node"}, {0, 0, 1, 2});
    ASSERT_EQ(hosts.size(), 3U);
    EXPECT_EQ(hosts[0].name, "node-0");
    EXPECT_EQ(hosts[0].num_ranks, 2);
    EXPECT_EQ(hosts[1].name, "other");
    EXPECT_EQ(hosts[2].name, "node-2");
    EXPECT_EQ(hosts[2].first_rank, 3);
}

TEST(HangFile, SaysOfEveryRankWhatItDoesAndForWhomItWaits) {
    HostReport report = host_of({rank_in(Phase::exchange, 0), stopped_in(Phase::compute, 1)});
    report.ranks[0].saving = 12;
    report.ranks[0].saving_s = 3.5;
    Judgement const judgement = judge(two_hosts, {report, std::nullopt});
    std::string const text = to_json(report, two_hosts[0], 4, judgement, "the line");
    auto const json = nlohmann::json::parse(text);
    EXPECT_EQ(json["launch"], 4);
    EXPECT_EQ(json["host"], "n1");
    EXPECT_EQ(json["conclusion"], "the line");
    EXPECT_EQ(json["hosts_without_report"], nlohmann::json({"n2"}));
    EXPECT_EQ(json["ranks"][0]["waits_for"], nlohmann::json({1, 2, 3}));
    EXPECT_EQ(json["ranks"][0]["hangs"], false);
    EXPECT_EQ(json["ranks"][1]["phase"], "compute");
    EXPECT_EQ(json["ranks"][1]["step"], 17);
    EXPECT_EQ(json["ranks"][1]["seconds"], 61);
    EXPECT_EQ(json["ranks"][1]["hangs"], true);
    EXPECT_FALSE(json["ranks"][1].contains("waits_for"));

    auto const back = host_report_from_json(text);
    ASSERT_TRUE(back);
    EXPECT_EQ(to_json(*back, two_hosts[0], 4, judgement, "the line"), text);
}

TEST(HangFile, WhatIsNoReportIsNone) {
    for (char const* const text :
         {"", "{", "[]", "{}", R"({"deadline_s": 1})",
          R"({"deadline_s": "soon", "saving_deadline_s": 1, "ranks": []})",
          R"({"deadline_s": 1, "saving_deadline_s": 1, "ranks": [{"rank": 0}]})",
          R"({"deadline_s": 1, "saving_deadline_s": 1, "ranks": [{"phase": "lunch"}]})"})
        EXPECT_FALSE(host_report_from_json(text)) << text;
}

}  // namespace
}  // namespace holdfast::train
