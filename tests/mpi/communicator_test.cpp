// SPDX-License-Identifier: Apache-2.0
#include "parallel/communicator.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "core/error.hpp"
#include "parallel/host_shared_memory.hpp"

namespace holdfast::parallel {
namespace {

int world_rank() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

TEST(Communicator, ReordersRanksByHost) {
    // Dealt round robin to two hosts, the way --map-by node does.
    if (Communicator::collective_world().num_hosts() > 1)
        GTEST_SKIP() << "several machines: the numbers below are others";
    Communicator const world = Communicator::collective_world([](int rank) { return 7 - rank % 2; });
    int const size = world.size();
    EXPECT_EQ(world.num_hosts(), std::min(size, 2));
    int const even = (size + 1) / 2;
    int const me = world_rank();
    EXPECT_EQ(world.host(), me % 2);
    EXPECT_EQ(world.local_rank(), me / 2);
    EXPECT_EQ(world.local_size(), me % 2 == 0 ? even : size / 2);
    EXPECT_EQ(world.rank(), me % 2 == 0 ? me / 2 : even + me / 2);
    std::vector<std::string> const ranks = world.all_gather(std::to_string(world.rank()));
    for (int r = 0; r < size; ++r) EXPECT_EQ(ranks[static_cast<std::size_t>(r)], std::to_string(r));
}

TEST(Communicator, GathersAndBroadcastsTextsOfAnyLength) {
    Communicator const world = Communicator::collective_world();
    std::string const mine(static_cast<std::size_t>(world.rank()) * 1000,
                           static_cast<char>('a' + world.rank()));
    std::vector<std::string> const all = world.all_gather(mine);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
    for (std::size_t r = 0; r < all.size(); ++r)
        EXPECT_EQ(all[r], std::string(r * 1000, static_cast<char>('a' + r)));
    int const root = world.size() - 1;
    EXPECT_EQ(world.broadcast(mine, root), all.back());
    std::vector<std::byte> bytes((std::size_t{9} << 20) + 3, world.rank() == 0 ? std::byte{5} : std::byte{0});
    world.broadcast(bytes, 0);
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{5}; }));
}

TEST(Communicator, AnErrorOnOneRankReachesAllWithItsName) {
    Communicator const world = Communicator::collective_world();
    for (int failing = 0; failing < world.size(); ++failing) {
        try {
            world.agree([&] {
                if (world.rank() == failing) fail(ExitCode::do_not_requeue, "image {} is damaged", 17);
            });
            ADD_FAILURE() << "no error on rank " << world.rank();
        } catch (Error const& error) {
            EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
            EXPECT_THAT(error.what(), testing::HasSubstr("image 17 is damaged"));
            if (world.size() > 1) {
                EXPECT_THAT(error.what(), testing::HasSubstr("[rank " + std::to_string(failing) + ", "));
            }
        }
    }
    EXPECT_NO_THROW(world.agree([] {}));
}

TEST(Communicator, TheFirstOfSeveralErrorsIsReported) {
    Communicator const world = Communicator::collective_world();
    if (world.size() < 3) GTEST_SKIP() << "needs three ranks";
    try {
        world.agree([&] {
            if (world.rank() == 1) throw std::runtime_error("not ours");
            if (world.rank() == 2) fail(ExitCode::retry, "later");
        });
        ADD_FAILURE() << "no error";
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::internal_error);
        EXPECT_THAT(error.what(), testing::HasSubstr("not ours [rank 1, "));
    }
}

class SharedMemory : public testing::TestWithParam<HostSharedMemory::Backing> {};

TEST_P(SharedMemory, IsOneMemoryPerHost) {
    for (int hosts : {1, 2}) {
        Communicator const world = Communicator::collective_world([&](int rank) { return rank % hosts; });
        constexpr std::size_t size_bytes = (std::size_t{1} << 20) + 64;
        HostSharedMemory const memory = HostSharedMemory::collective_allocate(world, size_bytes, GetParam());
        EXPECT_EQ(memory.bytes().size(), size_bytes);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % 4096, 0u);
        EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0}; }));
        world.barrier();
        std::size_t const local = static_cast<std::size_t>(world.local_rank());
        memory.floats()[1000 * local] = static_cast<float>(10 * world.host() + world.local_rank() + 1);
        world.barrier();
        for (int l = 0; l < world.local_size(); ++l)
            EXPECT_EQ(memory.floats()[1000 * static_cast<std::size_t>(l)],
                      static_cast<float>(10 * world.host() + l + 1));
        world.barrier();
    }
}

TEST_P(SharedMemory, RefusesTooMuchOnAllRanks) {
    Communicator const world = Communicator::collective_world();
    try {
        HostSharedMemory::collective_allocate(world, std::size_t{1} << 60, GetParam());
        ADD_FAILURE() << "accepted";
    } catch (Error const& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("--shm-size"));
        EXPECT_THAT(error.what(), testing::HasSubstr("OMPI_MCA_osc_sm_backing_directory"));
    }
    EXPECT_NO_THROW(HostSharedMemory::collective_allocate(world, 4096, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(BothBackings, SharedMemory,
                         testing::Values(HostSharedMemory::Backing::memfd_or_window,
                                         HostSharedMemory::Backing::window));

}  // namespace
}  // namespace holdfast::parallel
