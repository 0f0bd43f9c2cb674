// SPDX-License-Identifier: Apache-2.0
#include "train/torch_on_gpu.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "cuda/device_runtime.hpp"

namespace holdfast::train {
namespace {

/// In a CUDA build the library must be found and loaded, with or without a GPU; a build for CPUs may have none.
TEST(TorchOnGpu, IsLoadedOrRefusedWithTheReason) {
    bool const has_gpu = !cuda::visible_device_uuids().empty();
    try {
        start_torch_on_gpu(0, parallel::Reduction::exact, Precision::fp32);
        EXPECT_TRUE(has_gpu);
        EXPECT_THAT(cudnn_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
    } catch (Error const& error) {
        EXPECT_FALSE(has_gpu) << error.what();
        EXPECT_EQ(error.code(), ExitCode::do_not_requeue);
        EXPECT_THAT(error.what(), testing::HasSubstr("--device cpu"));
        EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("LibTorch cannot compute on GPU 0"),
                                                 testing::HasSubstr("libtorch_cuda.so cannot be loaded")));
        if (cuda::supports_gpus()) {
            EXPECT_THAT(error.what(), testing::HasSubstr("LibTorch cannot compute on GPU 0"));
            EXPECT_THAT(cudnn_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
        }
    }
}

}  // namespace
}  // namespace holdfast::train
