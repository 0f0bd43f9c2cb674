// SPDX-License-Identifier: Apache-2.0
#include "train/captured_work.hpp"

#include <stdexcept>

#include <gtest/gtest.h>

namespace holdfast::train {
namespace {

struct CapturedWorkTest : testing::Test {
    CapturedWork counting(CudaGraphs graphs) {
        return CapturedWork({.stream = &stream, .graphs = graphs}, [this] { ++count; });
    }
    cuda::Stream stream;
    int count = 0;
};

TEST_F(CapturedWorkTest, IsDoneOnceEachTime) {
    for (CudaGraphs const graphs : {CudaGraphs::off, CudaGraphs::automatic, CudaGraphs::on}) {
        count = 0;
        CapturedWork work = counting(graphs);
        for (int run = 1; run <= 8; ++run) {
            work.run();
            EXPECT_EQ(count, run);
        }
    }
}

TEST_F(CapturedWorkTest, IsRecordedAfterThreeRunsUnlessThatIsOff) {
    CapturedWork on = counting(CudaGraphs::on);
    CapturedWork off = counting(CudaGraphs::off);
    for (int run = 1; run <= 5; ++run) {
        on.run();
        off.run();
        EXPECT_EQ(on.is_recorded(), run > 3) << run;
        EXPECT_FALSE(off.is_recorded());
    }
}

TEST_F(CapturedWorkTest, ThrowsWhatItsWorkThrows) {
    CapturedWork work({.stream = &stream, .graphs = CudaGraphs::on}, [] { throw std::runtime_error("x"); });
    for (int run = 1; run <= 6; ++run) EXPECT_THROW(work.run(), std::runtime_error);
}

}  // namespace
}  // namespace holdfast::train
