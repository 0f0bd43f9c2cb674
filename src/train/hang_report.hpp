// SPDX-License-Identifier: Apache-2.0
// Who hangs, and who only waits: the judgement over what the ranks of all hosts were doing when nothing moved any more, and its
// two forms, the line that is printed and RUN/hang/LAUNCH-host.json. No clocks, no threads: those are watchdog.hpp's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/phase_board.hpp"

namespace holdfast::train {

struct RankReport {
    int rank = 0;
    int pid = 0;
    Phase phase = Phase::start;
    std::int64_t step = 0;
    double seconds = 0;  ///< since it last got on
    bool is_waiting = false;
    double silent_s = 0;  ///< since its process last showed that it runs at all
    /// The checkpoint writer's thread, if at work: the step it makes durable, and since when.
    std::optional<std::int64_t> saving{};
    double saving_s = 0;
    std::string process_state{};  ///< in words, where the kernel's answer means something; else empty
};

/// A host of the launch. Names are those that reports go by: unique.
struct HostRanks {
    std::string name;
    int first_rank = 0;
    int num_ranks = 1;
};

/// What one host saw.
struct HostReport {
    double deadline_s = 0;         ///< the one that passed
    double saving_deadline_s = 0;  ///< of the checkpoint writer's thread
    std::vector<RankReport> ranks;
};

struct Judgement {
    std::vector<RankReport> hanging;      ///< the others wait for these
    std::vector<RankReport> waiting;      ///< have done their part
    std::vector<HostRanks> silent_hosts;  ///< wrote no report
    bool knows_all_hosts = true;          ///< false: reports could not be exchanged
};

/// A host whose machine names are not unique gets its number appended: its report must not replace another's.
std::vector<HostRanks> unique_hosts(std::vector<std::string> const& names_by_rank,
                                    std::vector<int> const& hosts_by_rank);

/// `reports` by host; none: that host has written nothing.
/// A process that does not run at all is the culprit, whatever it was doing. If all run, it is who is late and does not wait for
/// others; a rank in the exchange waits. If nobody is left the ranks wait for each other, which only a broken network explains.
Judgement judge(std::vector<HostRanks> const& hosts, std::vector<std::optional<HostReport>> const& reports);

/// One line: who hangs where, who waits, what to try. `report_folder` is empty if no file could be written.
std::string explain(Judgement const& judgement, std::vector<HostRanks> const& hosts, double deadline_s,
                    std::string const& report_folder);

/// The file of one host, and back. The conclusion is `explain`'s line, or empty while it is not known.
std::string to_json(HostReport const& report, HostRanks const& host, std::int64_t launch,
                    Judgement const& judgement, std::string const& conclusion);
/// None for what is not such a file (yet).
std::optional<HostReport> host_report_from_json(std::string const& text);

}  // namespace holdfast::train
