// SPDX-License-Identifier: Apache-2.0
#include "train/replica_check.hpp"

#include <cstring>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "data/synthetic_images.hpp"
#include "parallel/host_shared_memory.hpp"

namespace holdfast::train {
namespace {

using parallel::Communicator;
using testing::HasSubstr;

constexpr std::size_t part_floats = 1000;

/// A state as the ranks of each host share it, and data of which every rank has its own.
struct Copies {
    explicit Copies(Communicator const& communicator)
        : memory(
              parallel::HostSharedMemory::collective_allocate(communicator, 5 * part_floats * sizeof(float))),
          sets(data::synthetic_datasets(20)) {
        std::span<float> const all = memory.floats();
        if (communicator.local_rank() == 0)
            for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i);
        auto const part = [&](std::size_t number) { return all.subspan(number * part_floats, part_floats); };
        state.tensors = {part(0), part(1), part(2), part(3), part(4)};
        state.step = 12;
        state.settings.data_digest = data::digest_of(*sets.train, *sets.test).hex();
        communicator.barrier();
    }

    parallel::HostSharedMemory memory;
    data::TrainAndTest sets;
    RunState state;
};

void collective_check(Communicator const& communicator, Copies const& copies) {
    collective_check_replicas(communicator, copies.state, replica_digests(copies.state.tensors), 8,
                              *copies.sets.train, *copies.sets.test);
}

/// The message, the same on all ranks; empty if the check passes.
std::string collective_message(Communicator const& communicator, Copies const& copies) {
    std::string message;
    try {
        collective_check(communicator, copies);
    } catch (Error const& error) {
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
        message = error.what();
    }
    for (std::string const& other : communicator.all_gather(message)) EXPECT_EQ(other, message);
    return message;
}

void flip_one_bit(float& value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bits ^= 1u;
    std::memcpy(&value, &bits, sizeof bits);
}

Communicator collective_hosts(int num_hosts) {
    return Communicator::collective_world([num_hosts](int rank) { return rank % num_hosts; });
}

TEST(ReplicaCheck, PassesWhereAllAreTheSame) {
    for (int const num_hosts : {1, 2}) {
        Communicator const world = collective_hosts(num_hosts);
        Copies const copies(world);
        EXPECT_EQ(collective_message(world, copies), "");
    }
}

TEST(ReplicaCheck, NamesRankAndHostOfAFlippedBit) {
    Communicator const world = collective_hosts(2);
    if (world.num_hosts() != 2) GTEST_SKIP() << "needs two hosts, real ones or played";
    // Ranks are ordered by host: the first of the other host is the first that differs.
    std::vector<std::string> const hosts = world.all_gather(std::to_string(world.host()));
    auto const first_of_other = std::find(hosts.begin(), hosts.end(), "1") - hosts.begin();
    struct Case {
        std::span<float> StateTensors::*part;
        std::string name;
    };
    for (Case const& one :
         {Case{&StateTensors::parameters, "parameters"}, Case{&StateTensors::momentum, "momentum"},
          Case{&StateTensors::statistics, "statistics"},
          Case{&StateTensors::average_parameters, "averages of parameters"},
          Case{&StateTensors::average_statistics, "averages of statistics"}}) {
        for (std::size_t const place : {std::size_t{0}, part_floats - 1}) {
            Copies copies(world);
            if (world.host() == 1 && world.local_rank() == 0)
                flip_one_bit((copies.state.tensors.*one.part)[place]);
            world.barrier();
            std::string const message = collective_message(world, copies);
            EXPECT_THAT(message, HasSubstr("step 12"));
            EXPECT_THAT(message, HasSubstr("the checkpoint of step 8 is good"));
            EXPECT_THAT(message, HasSubstr("'" + one.name + " "));
            EXPECT_THAT(message, HasSubstr("' on rank 0 (" + world.host_name()));
            EXPECT_THAT(message, HasSubstr("' on rank " + std::to_string(first_of_other) + " ("));
        }
    }
}

TEST(ReplicaCheck, NamesTheRankWhoseDataHaveChanged) {
    Communicator const world = Communicator::collective_world();
    for (int changed = 0; changed < world.size(); ++changed) {
        Copies copies(world);
        if (world.rank() == changed) copies.sets = data::synthetic_datasets(21);
        std::string const message = collective_message(world, copies);
        EXPECT_THAT(message, HasSubstr("the data have changed under the run"));
        if (world.size() > 1) {
            EXPECT_THAT(message, HasSubstr("[rank " + std::to_string(changed) + ", "));
        }
    }
}

}  // namespace
}  // namespace holdfast::train
