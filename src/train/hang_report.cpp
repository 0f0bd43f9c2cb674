// SPDX-License-Identifier: Apache-2.0
#include "train/hang_report.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/json_text.hpp"

namespace holdfast::train {
namespace {

using Json = nlohmann::ordered_json;

/// A line is read by a person: more culprits than this are in the files.
constexpr std::size_t max_named = 3;

/// "rank 4", "ranks 0-2, 5".
std::string ranks_text(std::vector<int> ranks) {
    std::ranges::sort(ranks);
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < ranks.size();) {
        std::size_t end = i + 1;
        while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
        bool const is_range = end - i > 2;
        parts.push_back(is_range ? fmt::format("{}-{}", ranks[i], ranks[end - 1])
                                 : fmt::format("{}", ranks[i]));
        i = is_range ? end : i + 1;
    }
    return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(parts, ", "));
}

std::vector<int> numbers(std::vector<RankReport> const& ranks) {
    std::vector<int> numbers;
    for (RankReport const& rank : ranks) numbers.push_back(rank.rank);
    return numbers;
}

std::string host_of(int rank, std::vector<HostRanks> const& hosts) {
    for (HostRanks const& host : hosts)
        if (rank >= host.first_rank && rank < host.first_rank + host.num_ranks) return host.name;
    return "an unknown host";
}

std::string ranks_of(HostRanks const& host) {
    std::vector<int> ranks;
    for (int i = 0; i < host.num_ranks; ++i) ranks.push_back(host.first_rank + i);
    return ranks_text(ranks);
}

std::string place(Phase phase, std::int64_t step) {
    return phase == Phase::start ? "start" : fmt::format("{} of step {}", name_of(phase), step);
}

std::string what_hangs(RankReport const& rank, std::vector<HostRanks> const& hosts) {
    bool const is_writer = rank.saving && rank.saving_s >= rank.seconds;
    std::string text =
        fmt::format("rank {} on {} hangs in {} for {:.0f} s", rank.rank, host_of(rank.rank, hosts),
                    is_writer ? place(Phase::save, *rank.saving) : place(rank.phase, rank.step),
                    is_writer ? rank.saving_s : rank.seconds);
    if (!rank.process_state.empty()) text += fmt::format(" (process {} {})", rank.pid, rank.process_state);
    return text;
}

std::string what_is_silent(HostRanks const& host) {
    return fmt::format(
        "host {} ({}) has written no report: it is lost or cut off, or all its ranks are stopped, or it does "
        "not see the run directory",
        host.name, ranks_of(host));
}

/// Where nobody is to blame.
std::string who_waits_for_whom(Judgement const& judgement, std::vector<HostRanks> const& hosts) {
    if (judgement.waiting.empty()) return "a rank got on only while this was written";
    RankReport const& first = *std::ranges::min_element(judgement.waiting, {}, &RankReport::step);
    std::string const where = place(first.phase, first.step);
    if (!judgement.knows_all_hosts)
        return fmt::format("{} on {} wait for others in {}, of which nothing is known",
                           ranks_text(numbers(judgement.waiting)), host_of(first.rank, hosts), where);
    if (hosts.size() == 1)
        return fmt::format("all ranks wait for each other in {}: a bug, please report it", where);
    std::vector<std::string> names;
    for (HostRanks const& host : hosts) names.push_back(fmt::format("{} ({})", host.name, ranks_of(host)));
    return fmt::format(
        "all ranks run and wait for each other in {}: the network between the hosts {} is broken", where,
        fmt::join(names, ", "));
}

}  // namespace

std::vector<HostRanks> unique_hosts(std::vector<std::string> const& names_by_rank,
                                    std::vector<int> const& hosts_by_rank) {
    std::vector<HostRanks> hosts;
    std::map<std::string, int> uses;
    for (std::size_t rank = 0; rank < names_by_rank.size(); ++rank) {
        if (rank > 0 && hosts_by_rank[rank] == hosts_by_rank[rank - 1]) {
            ++hosts.back().num_ranks;
            continue;
        }
        hosts.push_back({names_by_rank[rank], static_cast<int>(rank), 1});
        ++uses[names_by_rank[rank]];
    }
    for (std::size_t number = 0; number < hosts.size(); ++number)
        if (uses[hosts[number].name] > 1) hosts[number].name += fmt::format("-{}", number);
    return hosts;
}

Judgement judge(std::vector<HostRanks> const& hosts, std::vector<std::optional<HostReport>> const& reports) {
    Judgement judgement;
    std::vector<RankReport> late;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
        if (!reports[host]) {
            judgement.silent_hosts.push_back(hosts[host]);
            continue;
        }
        HostReport const& report = *reports[host];
        for (RankReport const& rank : report.ranks) {
            // Half a deadline: the culprit stood still about as long as those who noticed, who got on just before.
            bool const is_stopped = rank.silent_s >= report.deadline_s / 2;
            bool const writer_hangs = rank.saving && rank.saving_s >= report.saving_deadline_s;
            bool const stands_still = rank.seconds >= report.deadline_s / 2;
            if (is_stopped)
                judgement.hanging.push_back(rank);
            else if (writer_hangs || (stands_still && !rank.is_waiting))
                late.push_back(rank);
            else if (stands_still)
                judgement.waiting.push_back(rank);
        }
    }
    // With a stopped process there, nobody can say whether the late ones are to blame as well.
    if (judgement.hanging.empty())
        judgement.hanging = late;
    else
        judgement.waiting.insert(judgement.waiting.end(), late.begin(), late.end());
    return judgement;
}

std::string explain(Judgement const& judgement, std::vector<HostRanks> const& hosts, double deadline_s,
                    std::string const& report_folder) {
    std::vector<std::string> causes;
    std::set<std::string> bad_hosts;
    for (RankReport const& rank : judgement.hanging) {
        bad_hosts.insert(host_of(rank.rank, hosts));
        if (causes.size() < max_named) causes.push_back(what_hangs(rank, hosts));
    }
    if (judgement.hanging.size() > max_named)
        causes.push_back(fmt::format("{} more ranks hang", judgement.hanging.size() - max_named));
    for (HostRanks const& host : judgement.silent_hosts) {
        bad_hosts.insert(host.name);
        causes.push_back(what_is_silent(host));
    }
    std::string waiting;
    if (causes.empty())
        causes.push_back(who_waits_for_whom(judgement, hosts));
    else if (!judgement.waiting.empty())
        waiting = fmt::format("; {} wait{}", ranks_text(numbers(judgement.waiting)),
                              judgement.waiting.size() == 1 ? "s" : "");
    std::string const advice =
        bad_hosts.empty() || hosts.size() == 1
            ? std::string()
            : fmt::format(", without {} if it happens there again", fmt::join(bad_hosts, ", "));
    return fmt::format(
        "no progress for {:.0f} s: {}{} (no rank can go on without the others); this launch ends with 75: "
        "start "
        "again to go on from the last checkpoint{}{}",
        deadline_s, fmt::join(causes, "; "), waiting, advice,
        report_folder.empty() ? std::string() : fmt::format("; details: {}", report_folder));
}

std::string to_json(HostReport const& report, HostRanks const& host, std::int64_t launch,
                    Judgement const& judgement, std::string const& conclusion) {
    std::set<int> hanging;
    for (RankReport const& rank : judgement.hanging) hanging.insert(rank.rank);
    std::set<int> missing = hanging;
    for (HostRanks const& silent : judgement.silent_hosts)
        for (int i = 0; i < silent.num_ranks; ++i) missing.insert(silent.first_rank + i);

    Json json;
    json["launch"] = launch;
    json["host"] = host.name;
    json["deadline_s"] = report.deadline_s;
    json["saving_deadline_s"] = report.saving_deadline_s;
    for (RankReport const& rank : report.ranks) {
        Json row;
        row["rank"] = rank.rank;
        row["pid"] = rank.pid;
        row["phase"] = name_of(rank.phase);
        row["step"] = rank.step;
        row["seconds"] = rank.seconds;
        row["silent_s"] = rank.silent_s;
        row["process"] = rank.process_state;
        if (rank.saving) {
            row["saving_step"] = *rank.saving;
            row["saving_s"] = rank.saving_s;
        }
        row["is_waiting"] = rank.is_waiting;
        bool const is_hanging = hanging.contains(rank.rank);
        row["hangs"] = is_hanging;
        if (rank.is_waiting && !is_hanging) row["waits_for"] = missing;
        json["ranks"].push_back(std::move(row));
    }
    json["hosts_without_report"] = Json::array();
    for (HostRanks const& silent : judgement.silent_hosts)
        json["hosts_without_report"].push_back(silent.name);
    json["conclusion"] = conclusion;
    return json_text(json) + "\n";
}

std::optional<HostReport> host_report_from_json(std::string const& text) {
    try {
        Json const json = Json::parse(text);
        HostReport report;
        report.deadline_s = json.at("deadline_s");
        report.saving_deadline_s = json.at("saving_deadline_s");
        for (Json const& row : json.at("ranks")) {
            std::optional<Phase> const phase = phase_named(row.at("phase").get<std::string>());
            if (!phase) return std::nullopt;
            RankReport rank;
            rank.rank = row.at("rank");
            rank.pid = row.at("pid");
            rank.phase = *phase;
            rank.step = row.at("step");
            rank.seconds = row.at("seconds");
            rank.is_waiting = row.at("is_waiting");
            rank.silent_s = row.at("silent_s");
            rank.process_state = row.at("process");
            if (row.contains("saving_step")) {
                rank.saving = row.at("saving_step").get<std::int64_t>();
                rank.saving_s = row.at("saving_s");
            }
            report.ranks.push_back(std::move(rank));
        }
        return report;
    } catch (nlohmann::json::exception const&) {
        return std::nullopt;
    }
}

}  // namespace holdfast::train
