// SPDX-License-Identifier: Apache-2.0
// Steps in device memory, here on the host implementation, against those in host memory. (That they have the same bits where they
// compute in the same way: training_bits_test.cpp. Those of a GPU: tests/gpu.)
#include "train/device_training_step.hpp"

#include <gtest/gtest.h>

#include "support/step_difference.hpp"

namespace holdfast::train {
namespace {

// The bounds are for 50 steps, too (loss 5e-7 and 4e-3, update 6e-3 and 0.33, measured on a CPU with AVX-512); here five show that the
// comparison works, which tests/gpu stand on.
TEST(DeviceTrainingStep, IsNearTheHostsInAnotherOrderOrPrecision) {
    cuda::Stream const stream;
    for (char const* const recipe : {"tutorial", "strong"}) {
        SCOPED_TRACE(recipe);
        auto const difference = [&](ComputeDevice device) {
            device.stream = &stream;
            return test::largest_difference(device, {}, recipe, 5);
        };
        EXPECT_EQ(difference({}).update, 0.0);
        test::StepDifference const nhwc = difference({.layout = Layout::nhwc});
        EXPECT_LT(nhwc.loss, 1e-5);
        EXPECT_LT(nhwc.update, 0.02);
        EXPECT_LT(nhwc.statistics, 1e-5);
        EXPECT_GT(nhwc.update, 0.0) << "nothing was done otherwise";
        test::StepDifference const bf16 = difference({.precision = Precision::bf16, .layout = Layout::nhwc});
        EXPECT_LT(bf16.loss, 2e-2);
        EXPECT_LT(bf16.update, 0.6);
        EXPECT_GT(bf16.update, 0.02) << "computed in float32";
    }
}

}  // namespace
}  // namespace holdfast::train
