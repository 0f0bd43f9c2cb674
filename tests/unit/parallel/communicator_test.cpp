// SPDX-License-Identifier: Apache-2.0
// One rank without MPI: everything works and nothing talks.
#include "parallel/communicator.hpp"

#include <algorithm>
#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "parallel/host_shared_memory.hpp"

namespace holdfast::parallel {
namespace {

TEST(CommunicatorWithoutMpi, IsOneRankOnOneHost) {
    Communicator const one;
    EXPECT_EQ(one.rank(), 0);
    EXPECT_EQ(one.size(), 1);
    EXPECT_EQ(one.host(), 0);
    EXPECT_EQ(one.num_hosts(), 1);
    EXPECT_EQ(one.local_rank(), 0);
    EXPECT_EQ(one.local_size(), 1);
    EXPECT_FALSE(one.host_name().empty());
    one.barrier();
    one.barrier_host();
    EXPECT_THAT(one.all_gather("mine"), testing::ElementsAre("mine"));
    EXPECT_EQ(one.broadcast(std::string("text"), 0), "text");
}

TEST(CommunicatorWithoutMpi, AgreeThrowsTheError) {
    Communicator const one;
    EXPECT_NO_THROW(one.agree([] {}));
    EXPECT_THROW(one.agree([] { fail(ExitCode::retry, "broken"); }), Error);
}

TEST(HostSharedMemory, IsZeroAlignedAndMovable) {
    Communicator const one;
    HostSharedMemory memory = HostSharedMemory::collective_allocate(one, 100'000);
    ASSERT_EQ(memory.bytes().size(), 100'000u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % 4096, 0u);
    EXPECT_TRUE(std::ranges::all_of(memory.floats(), [](float f) { return f == 0.0f; }));
    memory.floats()[7] = 1.0f;
    HostSharedMemory const moved = std::move(memory);
    EXPECT_EQ(moved.floats()[7], 1.0f);
}

TEST(HostSharedMemory, RefusesWhatCannotBeMapped) {
    Communicator const one;
    EXPECT_THROW(HostSharedMemory::collective_allocate(one, std::size_t{1} << 60), Error);
}

}  // namespace
}  // namespace holdfast::parallel
