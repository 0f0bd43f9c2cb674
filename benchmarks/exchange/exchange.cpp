// SPDX-License-Identifier: Apache-2.0
// Time of one exchange of ResNet34's gradient against MPI_Allreduce of the same bytes in 1 MB pieces (the
// fastest way to call it: one call for everything takes several times longer). The consumer copies the sum
// into memory the host shares, so a consumer's write is included on our side. Blocks alternate, because the
// machine's speed drifts: only the ratio within a pair means anything.
//
// mpirun -np 2 benchmark_exchange [--pairs N] [--replicas V] [--json]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <mpi.h>
#include <nlohmann/json.hpp>

#include "parallel/gradient_exchange.hpp"
#include "parallel/host_shared_memory.hpp"
#include "parallel/mpi_session.hpp"

namespace {

using namespace holdfast::parallel;

constexpr std::size_t num_floats =
    21'282'128;  // 21,282,122 parameters of ResNet34 (10 classes), padded to 16
constexpr std::size_t piece_floats = std::size_t{1} << 18;
constexpr int calls_per_block = 5;

double quantile(std::vector<double> values, double q) {
    std::ranges::sort(values);
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

/// Seconds of the fastest call of a block, slowest rank.
double time_block(Communicator const& world, std::function<void()> const& call) {
    double best = 1e30;
    for (int i = 0; i < calls_per_block; ++i) {
        world.barrier();
        double const start = MPI_Wtime();
        call();
        double mine = MPI_Wtime() - start;
        double slowest = 0;
        MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        best = std::min(best, slowest);
    }
    return best;
}

nlohmann::json measure(Communicator const& world, int num_replicas, int num_pairs) {
    int const slots = (num_replicas + world.size() - 1) / world.size();
    auto const exchange = collective_make_exchange(world, {num_replicas, num_floats, slots});
    HostSharedMemory const shared = HostSharedMemory::collective_allocate(world, num_floats * sizeof(float));
    std::span<float> const result = shared.floats();
    std::vector<float> reduced(num_floats, 0.5f);
    for (int b = 0; b < exchange->plan().num_buffers; ++b) std::ranges::fill(exchange->buffer(b), 0.25f);

    auto const ours = [&] {
        exchange->reduce([&](std::size_t offset, std::span<float const> sum) {
            std::memcpy(result.data() + offset, sum.data(), sum.size_bytes());
        });
    };
    auto const theirs = [&] {
        for (std::size_t begin = 0; begin < num_floats; begin += piece_floats)
            MPI_Allreduce(MPI_IN_PLACE, reduced.data() + begin,
                          static_cast<int>(std::min(piece_floats, num_floats - begin)), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
    };
    auto const consume_only_sum = [&] { exchange->reduce([](std::size_t, std::span<float const>) {}); };
    ours();
    theirs();
    std::vector<double> ratios;
    std::vector<double> ours_ms;
    std::vector<double> theirs_ms;
    std::vector<double> sum_only_ratios;
    for (int pair = 0; pair < num_pairs; ++pair) {
        double const a = time_block(world, ours);
        double const b = time_block(world, theirs);
        double const c = time_block(world, consume_only_sum);
        ours_ms.push_back(a * 1e3);
        theirs_ms.push_back(b * 1e3);
        ratios.push_back(a / b);
        sum_only_ratios.push_back(c / b);
        std::ranges::fill(reduced, 0.5f);
    }
    return {{"backend", exchange->name()},
            {"ranks", world.size()},
            {"hosts", world.num_hosts()},
            {"replicas", num_replicas},
            {"bytes", num_floats * sizeof(float)},
            {"pairs", num_pairs},
            {"exchange_ms", quantile(ours_ms, 0.5)},
            {"allreduce_ms", quantile(theirs_ms, 0.5)},
            {"ratio", quantile(ratios, 0.5)},
            {"ratio_q1", quantile(ratios, 0.25)},
            {"ratio_q3", quantile(ratios, 0.75)},
            {"ratio_without_consumer", quantile(sum_only_ratios, 0.5)}};
}

}  // namespace

int main(int argc, char** argv) try {
    int num_pairs = 9;
    int num_replicas = 0;
    bool json = false;
    for (int i = 1; i < argc; ++i) {
        std::string const argument = argv[i];
        if (argument == "--json") {
            json = true;
        } else if (argument == "--pairs" && i + 1 < argc) {
            num_pairs = std::max(1, std::atoi(argv[++i]));
        } else if (argument == "--replicas" && i + 1 < argc) {
            num_replicas = std::atoi(argv[++i]);
        } else {
            std::fprintf(stderr, "usage: %s [--pairs N] [--replicas V] [--json]\n", argv[0]);
            return 2;
        }
    }
    MpiSession const mpi(argc, argv);
    nlohmann::json rows = nlohmann::json::array();
    for (bool const own_hosts : {false, true}) {
        Communicator const world = own_hosts ? Communicator::collective_world([](int rank) { return rank; })
                                             : Communicator::collective_world();
        rows.push_back(measure(world, num_replicas > 0 ? num_replicas : world.size(), num_pairs));
        if (world.rank() != 0 || json) continue;
        nlohmann::json const& r = rows.back();
        std::printf(
            "%-14s ranks %d hosts %d replicas %d: %.1f ms, MPI_Allreduce in 1 MB pieces %.1f ms; "
            "ratio %.3f [%.3f, %.3f], without the consumer's copy %.3f (%d pairs)\n",
            r["backend"].get<std::string>().c_str(), r["ranks"].get<int>(), r["hosts"].get<int>(),
            r["replicas"].get<int>(), r["exchange_ms"].get<double>(), r["allreduce_ms"].get<double>(),
            r["ratio"].get<double>(), r["ratio_q1"].get<double>(), r["ratio_q3"].get<double>(),
            r["ratio_without_consumer"].get<double>(), num_pairs);
        std::fflush(stdout);
    }
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (json && rank == 0) std::printf("%s\n", rows.dump(2).c_str());
    return 0;
} catch (std::exception const& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    holdfast::parallel::MpiSession::abort(1);
}
