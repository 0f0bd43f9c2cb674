// SPDX-License-Identifier: Apache-2.0
#include "report/start_times.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace holdfast::report {
namespace {

TEST(StartTimes, PartsAddUpToTheAgeOfTheProcess) {
    double const before_s = seconds_since_exec();
    StartTimes times;
    times.part_done("mpi");
    times.part_done("load");
    double const after_s = seconds_since_exec();
    nlohmann::ordered_json const json = times.json();
    std::vector<std::string> names;
    double sum_s = 0;
    for (auto const& [name, seconds] : json.items()) {
        names.push_back(name);
        EXPECT_GE(seconds.get<double>(), 0) << name;
        if (name != "total_s") sum_s += seconds.get<double>();
    }
    EXPECT_THAT(names, testing::ElementsAre("loading_s", "mpi_s", "load_s", "total_s"));
    EXPECT_NEAR(sum_s, json["total_s"].get<double>(), 1e-9);
    EXPECT_GE(json["total_s"].get<double>(), before_s);
    EXPECT_LE(json["total_s"].get<double>(), after_s);
    EXPECT_THAT(times.text(), testing::MatchesRegex(".* s \\(loading .*, mpi .*, load .*\\)"));
}

}  // namespace
}  // namespace holdfast::report
