// SPDX-License-Identifier: Apache-2.0
#include "train/numeric_fingerprint.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/digest.hpp"

namespace holdfast::train {
namespace {

TEST(NumericFingerprint, IsTheSameEachTime) {
    for (int threads : {1, 2})
        EXPECT_EQ(numeric_fingerprint(threads), numeric_fingerprint(threads)) << threads;
}

TEST(NumericFingerprint, OfTheDevicePathIsTheHostsInHostMemory) {
    cuda::Stream const stream;
    EXPECT_EQ(numeric_fingerprint(1, {.stream = &stream}), numeric_fingerprint(1));
}

TEST(NumericFingerprint, SaysWhatTheBitsDependOn) {
    nlohmann::json const json = nlohmann::json::parse(numeric_fingerprint(2));
    EXPECT_EQ(json.at("torch"), torch_version());
    EXPECT_EQ(json.at("cpu_capability"), cpu_capability());
    EXPECT_EQ(json.at("threads"), 2);
    EXPECT_NO_THROW(parse_digest(json.at("gradient_digest").get<std::string>()));
    EXPECT_NE(parse_digest(json.at("gradient_digest").get<std::string>()), Digest{});
}

}  // namespace
}  // namespace holdfast::train
