// SPDX-License-Identifier: Apache-2.0
// Not a test but what one runs: the shape of main, in which the last rank fails while the others wait for it.
#include <cstdio>
#include <exception>

#include "core/error.hpp"
#include "parallel/communicator.hpp"
#include "parallel/gradient_exchange.hpp"
#include "parallel/host_shared_memory.hpp"
#include "parallel/mpi_session.hpp"

int main(int argc, char** argv) try {
    using namespace holdfast;
    using namespace holdfast::parallel;
    MpiSession const mpi(argc, argv);
    Communicator const world = Communicator::collective_world();
    auto const exchange = collective_make_exchange(world, {world.size(), 4096, 1});
    auto const window = HostSharedMemory::collective_allocate(world, 4096, HostSharedMemory::Backing::window);
    if (world.rank() == world.size() - 1) fail(ExitCode::do_not_requeue, "this rank fails");
    exchange->reduce([](std::size_t, std::span<float const>) {});
    return 0;
} catch (holdfast::Error const& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    holdfast::parallel::MpiSession::abort(static_cast<int>(error.code()));
}
