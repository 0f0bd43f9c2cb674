// SPDX-License-Identifier: Apache-2.0
#include "train/torch_on_gpu.hpp"

#include <cstdlib>

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include "core/error.hpp"
#include "cuda/device_runtime.hpp"
#include "support/expect_error.hpp"
#include "train/numeric_fingerprint.hpp"

namespace holdfast::train {
namespace {

/// In a CUDA build the library must be found and loaded, with or without a GPU; a build for CPUs may have none.
TEST(TorchOnGpu, IsLoadedOrRefusedWithTheReason) {
    bool const has_gpu = !cuda::visible_device_uuids().empty();
    // What a launch asks before must not have switched off LibTorch's part for GPUs.
    EXPECT_EQ(torch_version_loaded(), torch_version());
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
            at::Context const& context = at::globalContext();
            EXPECT_TRUE(context.deterministicCuDNN());
            EXPECT_FALSE(context.benchmarkCuDNN());
            EXPECT_TRUE(context.deterministicAlgorithms());
            EXPECT_EQ(context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV),
                      at::Float32Precision::NONE);
            EXPECT_EQ(context.float32MatmulPrecision(), at::Float32MatmulPrecision::HIGHEST);
            EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
            EXPECT_THAT(error.what(), testing::HasSubstr("LibTorch cannot compute on GPU 0"));
            EXPECT_THAT(cudnn_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
        }
    }
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
/// LibTorch's allocator of a GPU, of which only one number is asked.
class AllocatorThatRanShort : public c10::DeviceAllocator {
  public:
    explicit AllocatorThatRanShort(std::int64_t num_shortages) { stats_.num_ooms = num_shortages; }
    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t) override {}
    void recordStream(c10::DataPtr const&, c10::Stream) override {}
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return stats_; }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex) override {}
    c10::DataPtr allocate(std::size_t) override { return {}; }
    void copy_data(void*, void const*, std::size_t) const override {}

  private:
    c10::CachingDeviceAllocator::DeviceStats stats_;
};

TEST(TorchOnGpu, OtherAlgorithmsForWantOfMemoryAreRefusedInExactMode) {
    c10::Allocator* const before = c10::GetAllocator(at::kCUDA);
    bool const was_exact = at::globalContext().deterministicCuDNN();
    for (std::int64_t const num_shortages : {0, 3})
        for (bool const is_exact : {true, false}) {
            AllocatorThatRanShort allocator(num_shortages);
            c10::SetAllocator(at::kCUDA, &allocator, /*priority=*/255);
            at::globalContext().setDeterministicCuDNN(is_exact);
            if (is_exact && num_shortages > 0)
                test::expect_error([] { require_memory_was_enough(2); },
                                   {"the memory of GPU 2 was too small", "(3 times", "--batch-size"});
            else
                EXPECT_NO_THROW(require_memory_was_enough(2));
        }
    c10::SetAllocator(at::kCUDA, before, 255);
    at::globalContext().setDeterministicCuDNN(was_exact);
}
#endif

}  // namespace
}  // namespace holdfast::train
