// SPDX-License-Identifier: Apache-2.0
// Nothing in a run draws from a generator that others could advance too: a resumed run could not continue its sequence.
#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "data/synthetic_images.hpp"
#include "support/launch_table_of.hpp"
#include "train/evaluate.hpp"
#include "train/training_engine.hpp"

namespace holdfast::train {
namespace {

void train_and_evaluate() {
    parallel::Communicator const alone;
    data::TrainAndTest const sets = data::synthetic_datasets(20);
    Settings settings;
    settings.recipe = "strong";  // it uses everything that others draw random numbers for
    settings = with_recipe(settings, {"recipe"});
    settings.replicas = 2;
    settings.batch_size = 4;
    settings.threads = 1;
    TrainingEngine engine(alone, settings, {18, 4, 10, 3}, test::launch_table_of({0}, 1, 2));
    engine.initialize(alone, 1);
    data::BatchLoader loader(*sets.train, data::cifar10_normalization(),
                             loader_plan(settings, engine.replicas(), 0, 3));
    for (int step = 0; step < 3; ++step)
        engine.training_step().run(loader.next(), sets.train->shape(), {}, false);
    collective_evaluate(alone, engine.slots(), *sets.test, data::cifar10_normalization(), 3);
}

TEST(GlobalGenerators, AreNotAdvancedByTraining) {
    at::Tensor const before = at::globalContext().defaultGenerator(at::kCPU).get_state();
    std::srand(7);
    int const first_of_libc = std::rand();
    std::srand(7);
    train_and_evaluate();
    EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), before));
    EXPECT_EQ(std::rand(), first_of_libc);

    at::rand({1});
    EXPECT_FALSE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), before))
        << "a draw would go unnoticed";
}

}  // namespace
}  // namespace holdfast::train
