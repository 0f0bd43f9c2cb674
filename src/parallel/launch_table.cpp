// SPDX-License-Identifier: Apache-2.0
#include "parallel/launch_table.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.hpp"
#include "parallel/device_assignment.hpp"

namespace holdfast::parallel {
namespace {

std::string format_range(ReplicaRange range) {
    return range.size() == 1 ? fmt::format("{}", range.begin)
                             : fmt::format("{}-{}", range.begin, range.end - 1);
}

}  // namespace

LaunchTable collective_launch_table(Communicator const& communicator, std::string const& device,
                                    int num_replicas) {
    std::vector<std::string> const texts = communicator.all_gather(
        fmt::format("{}\n{}\n{}\n{}\n{}", communicator.host(), communicator.host_name(), device,
                    format_cores(affinity_cores()), num_machine_cores()));
    LaunchTable table;
    for (int rank = 0; rank < communicator.size(); ++rank) {
        std::istringstream lines(texts[static_cast<std::size_t>(rank)]);
        std::string host;
        std::string cores;
        std::string machine_cores;
        LaunchRow row;
        std::getline(lines, host);
        std::getline(lines, row.host_name);
        std::getline(lines, row.device);
        std::getline(lines, cores);
        std::getline(lines, machine_cores);
        row.host = std::stoi(host);
        row.cores = parse_cores(cores);
        row.machine_cores = std::stoi(machine_cores);
        row.replicas = replica_range(rank, communicator.size(), num_replicas);
        table.rows.push_back(std::move(row));
    }
    return table;
}

std::string LaunchTable::text() const {
    std::size_t host_width = 4;
    std::size_t device_width = 6;
    std::size_t cores_width = 5;
    for (LaunchRow const& row : rows) {
        host_width = std::max(host_width, row.host_name.size());
        device_width = std::max(device_width, row.device.size());
        cores_width = std::max(cores_width, format_cores(row.cores).size());
    }
    auto const line = [&](auto const& rank, auto const& host, auto const& device, auto const& cores,
                          auto const& replicas) {
        return fmt::format("{:>4}  {:<{}}  {:<{}}  {:<{}}  {}\n", rank, host, host_width, device,
                           device_width, cores, cores_width, replicas);
    };
    std::string text = line("rank", "host", "device", "cores", "replicas");
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
        LaunchRow const& row = rows[rank];
        text += line(rank, row.host_name, row.device, format_cores(row.cores), format_range(row.replicas));
    }
    text.pop_back();  // lines, not a last empty one
    return text;
}

int LaunchTable::num_cores_of_host(int host) const {
    std::set<int> cores;
    for (LaunchRow const& row : rows)
        if (row.host == host) cores.insert(row.cores.begin(), row.cores.end());
    return static_cast<int>(cores.size());
}

int LaunchTable::num_replicas_of_host(int host) const {
    int count = 0;
    for (LaunchRow const& row : rows)
        if (row.host == host) count += row.replicas.size();
    return count;
}

std::vector<int> LaunchTable::first_rank_of_hosts() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < static_cast<int>(rows.size()); ++rank)  // ordered by host
        if (rank == 0 ||
            rows[static_cast<std::size_t>(rank)].host != rows[static_cast<std::size_t>(rank - 1)].host)
            ranks.push_back(rank);
    return ranks;
}

int LaunchTable::num_ranks_of_host(int host) const {
    return static_cast<int>(std::ranges::count(rows, host, &LaunchRow::host));
}

std::vector<std::string> LaunchTable::host_names() const {
    std::vector<std::string> names;
    for (int const rank : first_rank_of_hosts())
        names.push_back(rows[static_cast<std::size_t>(rank)].host_name);
    return names;
}

int LaunchTable::default_threads_per_replica() const {
    int threads = num_cores_of_host(0) / num_replicas_of_host(0);
    for (LaunchRow const& row : rows)
        threads = std::min(threads, num_cores_of_host(row.host) / num_replicas_of_host(row.host));
    return std::max(threads, 1);
}

std::vector<std::string> LaunchTable::warnings() const {
    std::vector<std::string> warnings = unused_core_warnings();
    std::ranges::move(crowded_core_warnings(), std::back_inserter(warnings));
    return warnings;
}

std::vector<std::string> LaunchTable::unused_core_warnings() const {
    std::vector<std::string> warnings;
    for (int const rank : first_rank_of_hosts()) {
        LaunchRow const& row = rows[static_cast<std::size_t>(rank)];
        int const cores = num_cores_of_host(row.host);
        if (2 * cores <= row.machine_cores)
            warnings.push_back(
                fmt::format("the ranks on {} may use {} of its {} cores (mpirun binds a rank to one core "
                            "when there are one or two, and "
                            "srun gives a task one core unless told); if the host is yours, try mpirun "
                            "--bind-to none, or "
                            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
                            row.host_name, cores, row.machine_cores));
    }
    return warnings;
}

std::vector<std::string> LaunchTable::crowded_core_warnings() const {
    std::vector<std::string> warnings;
    for (int const rank : first_rank_of_hosts()) {
        LaunchRow const& row = rows[static_cast<std::size_t>(rank)];
        int const num_ranks = num_ranks_of_host(row.host);
        int const cores = num_cores_of_host(row.host);
        if (num_ranks > cores)
            warnings.push_back(
                fmt::format("{} ranks share {} cores on {} (they take turns); start fewer ranks", num_ranks,
                            cores, row.host_name));
    }
    return warnings;
}

}  // namespace holdfast::parallel
