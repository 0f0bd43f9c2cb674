// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_jsonl.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/temporary_folder.hpp"

namespace holdfast::report {
namespace {

std::string content_of(std::filesystem::path const& path) {
    std::ifstream stream(path);
    return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(MetricsLog, AppendsOneObjectALineOverLaunches) {
    test::TemporaryFolder const folder;
    auto const path = folder.path() / "metrics.jsonl";
    MetricsLog(path, 1).append(10, "step", {{"loss", 0.5}, {"images_per_s", 40}});
    {
        MetricsLog log(path, 2);
        log.append(10, "step", {{"loss", 0.25}});
        log.append(11, "save", nlohmann::ordered_json::object());
    }
    EXPECT_EQ(content_of(path),
              "{\"launch\":1,\"step\":10,\"event\":\"step\",\"loss\":0.5,\"images_per_s\":40}\n"
              "{\"launch\":2,\"step\":10,\"event\":\"step\",\"loss\":0.25}\n"
              "{\"launch\":2,\"step\":11,\"event\":\"save\"}\n");
}

TEST(MetricsLog, StartsANewLineAfterOneThatWasCut) {
    test::TemporaryFolder const folder;
    auto const path = folder.path() / "metrics.jsonl";
    std::ofstream(path) << "{\"launch\":1,\"step\":1}\n{\"laun";
    MetricsLog(path, 2).append(1, "step", nlohmann::ordered_json::object());
    EXPECT_EQ(content_of(path),
              "{\"launch\":1,\"step\":1}\n{\"laun\n{\"launch\":2,\"step\":1,\"event\":\"step\"}\n");
}

TEST(MetricsLog, EveryRowIsJsonWhateverIsInIt) {
    test::TemporaryFolder const folder;
    auto const path = folder.path() / "metrics.jsonl";
    MetricsLog(path, 1).append(1, "step",
                               {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"path", "a\xff\n\"b"}});
    std::string const text = content_of(path);
    ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
    auto const row = nlohmann::json::parse(text);
    EXPECT_TRUE(row["loss"].is_null());
    EXPECT_EQ(row["path"], "a\xef\xbf\xbd\n\"b");
}

TEST(MetricsLog, ThatCannotBeWrittenWarnsOnceAndNeverThrows) {
    testing::internal::CaptureStderr();
    {
        MetricsLog full("/dev/full", 1);
        full.append(1, "step", {{"loss", 1.0}});
        full.append(2, "step", {{"loss", 1.0}});
    }
    std::string const output = testing::internal::GetCapturedStderr();
    std::size_t const first = output.find("cannot write /dev/full");
    ASSERT_NE(first, std::string::npos) << output;
    EXPECT_EQ(output.find("cannot write", first + 1), std::string::npos) << output;
    MetricsLog missing("/nonexistent/metrics.jsonl", 1);
    missing.append(1, "step", nlohmann::ordered_json::object());
}

}  // namespace
}  // namespace holdfast::report
