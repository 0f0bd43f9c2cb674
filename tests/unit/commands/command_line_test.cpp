// SPDX-License-Identifier: Apache-2.0
#include "commands/command_line.hpp"

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace holdfast::commands {
namespace {

std::variant<TrainFlags, ExitCode> read(std::vector<std::string> words) {
    words.insert(words.begin(), {"holdfast", "train"});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return read_train_flags({static_cast<int>(argv.size()), argv.data()});
}

std::string run_of(std::vector<std::string> words) {
    auto const flags = read(std::move(words));
    return std::holds_alternative<TrainFlags>(flags) ? std::get<TrainFlags>(flags).run : "usage error";
}

/// A variable of the environment in this scope.
class Variable {
  public:
    Variable(char const* name, std::string const& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
    ~Variable() { ::unsetenv(name_); }
    Variable(Variable const&) = delete;
    Variable& operator=(Variable const&) = delete;

  private:
    char const* name_;
};

TEST(ReadTrainFlags, FindsTheRunDirectoryAsTrainDoes) {
    test::TemporaryFolder const folder;
    std::string const file = (folder.path() / "a config.toml").string();
    std::ofstream(file) << "run = \"from 'file'\"\n";
    EXPECT_EQ(run_of({}), "./holdfast-run");
    EXPECT_EQ(run_of({"--config", file}), "from 'file'");
    Variable const config("HOLDFAST_CONFIG", file);
    EXPECT_EQ(run_of({}), "from 'file'");
    Variable const run("HOLDFAST_RUN", "from environment");
    EXPECT_EQ(run_of({}), "from environment");
    EXPECT_EQ(run_of({"--run", "from \"flag\""}), "from \"flag\"");
}

TEST(ReadTrainFlags, KnowsWhatWasGiven) {
    Variable const threads("HOLDFAST_THREADS", "2");
    auto const flags = read({"--replicas", "4"});
    ASSERT_TRUE(std::holds_alternative<TrainFlags>(flags));
    EXPECT_THAT(std::get<TrainFlags>(flags).explicitly_given, testing::ElementsAre("replicas", "threads"));
}

TEST(ReadTrainFlags, EndsWithWhatTrainWouldEndWith) {
    EXPECT_EQ(std::get<ExitCode>(read({"--help"})), ExitCode::finished);
    EXPECT_EQ(std::get<ExitCode>(read({"--epoks", "3"})), ExitCode::usage);
    EXPECT_EQ(std::get<ExitCode>(read({"--seed", "1", "--seed", "2"})), ExitCode::usage);
    Variable const misspelt("HOLDFAST_EPOKS", "3");
    EXPECT_EQ(std::get<ExitCode>(read({})), ExitCode::usage);
}

}  // namespace
}  // namespace holdfast::commands
