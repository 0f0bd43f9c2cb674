// SPDX-License-Identifier: Apache-2.0
#include "train/replica_slots.hpp"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "support/random_floats.hpp"
#include "support/small_training.hpp"

namespace holdfast::train {
namespace {

using test::equal_bytes;
using test::image_shape;
using test::random_batch;

using Buffers = std::vector<std::vector<float>>;

/// Gradients of num_jobs batches, so many at a time as there are slots.
Buffers gradients(test::SmallNetwork const& small, int num_slots, int threads, int num_jobs) {
    ReplicaSlots slots(small.network, small.tensors, num_slots, threads);
    EXPECT_EQ(slots.size(), num_slots);
    std::vector<data::ReplicaBatch> batches;
    for (int job = 0; job < num_jobs; ++job)
        batches.push_back(random_batch(1 + job % 3, static_cast<std::uint32_t>(job)));
    Buffers buffers(static_cast<std::size_t>(num_jobs), std::vector<float>(small.network.layout.num_floats));
    for (int job = 0; job < num_jobs; ++job) {
        slots.start(job % num_slots, [&, i = static_cast<std::size_t>(job)](Replica& replica) {
            replica.train(batches[i], image_shape, {buffers[i], 0.3f, GradientWrite::overwrite});
        });
        if (job % num_slots == num_slots - 1) slots.wait();
    }
    slots.wait();
    return buffers;
}

TEST(ReplicaSlots, ConcurrentReplicasHaveTheBitsOfReplicasInTurn) {
    test::SmallNetwork const small;
    for (int threads : {1, 2}) {
        int const num_jobs = threads == 1 ? 8 : 4;
        Buffers const in_turn = gradients(small, 1, threads, num_jobs);
        for (int num_slots : {2, 3}) {
            Buffers const concurrent = gradients(small, num_slots, threads, num_jobs);
            for (std::size_t job = 0; job < in_turn.size(); ++job)
                EXPECT_TRUE(equal_bytes(concurrent[job], in_turn[job]))
                    << "job " << job << ", " << num_slots << " slots, " << threads << " threads";
        }
    }
}

TEST(ReplicaSlots, OneSlotRunsInTheCallingThreadMoreHaveTheirOwn) {
    test::SmallNetwork const small;
    for (int num_slots : {1, 2}) {
        ReplicaSlots slots(small.network, small.tensors, num_slots, 1);
        std::thread::id of_job;
        slots.start(0, [&](Replica&) { of_job = std::this_thread::get_id(); });
        slots.wait();
        EXPECT_EQ(of_job == std::this_thread::get_id(), num_slots == 1);
    }
}

TEST(ReplicaSlots, WaitingForNothingReturns) {
    test::SmallNetwork const small;
    for (int num_slots : {1, 2}) ReplicaSlots(small.network, small.tensors, num_slots, 1).wait();
}

TEST(ReplicaSlots, AFailingJobFailsTheWaitAndTheSlotLivesOn) {
    test::SmallNetwork const small;
    ReplicaSlots slots(small.network, small.tensors, 2, 1);
    bool other_ran = false;
    slots.start(0, [](Replica&) { throw std::runtime_error("the job's own"); });
    slots.start(1, [&](Replica&) { other_ran = true; });
    EXPECT_THROW(slots.wait(), std::runtime_error);
    EXPECT_TRUE(other_ran);
    bool runs_again = false;
    slots.start(0, [&](Replica&) { runs_again = true; });
    EXPECT_NO_THROW(slots.wait());
    EXPECT_TRUE(runs_again);
}

}  // namespace
}  // namespace holdfast::train
