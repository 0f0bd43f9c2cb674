// SPDX-License-Identifier: Apache-2.0
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/doctor/launch_checks.hpp"
#include "commands/doctor/launch_facts.hpp"
#include "unit/commands/expect_finding.hpp"

namespace holdfast::commands::doctor {
namespace {

using testing::HasSubstr;

Launcher launcher(std::map<std::string, std::string> const& environment, int mpi_size = 1) {
    Launcher found = launcher_of([&](char const* name) {
        auto const entry = environment.find(name);
        return entry == environment.end() ? nullptr : entry->second.c_str();
    });
    found.mpi_size = mpi_size;
    return found;
}

TEST(JudgeLauncher, HealthyLaunches) {
    EXPECT_EQ(judge_launcher(launcher({})).seen, "1 rank without a launcher");
    Launcher const mpirun = launcher({{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "3"}}, 4);
    EXPECT_EQ(state_of(judge_launcher(mpirun)), State::ok);
    EXPECT_EQ(judge_launcher(mpirun).seen, "4 ranks by mpirun with PMIx");
    Launcher const srun =
        launcher({{"PMIX_RANK", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_ID", "0"}}, 2);
    EXPECT_EQ(state_of(judge_launcher(srun)), State::ok);
    EXPECT_EQ(judge_launcher(srun).seen, "2 ranks by srun with PMIx");
    EXPECT_EQ(state_of(judge_launcher(launcher({{"PMI_SIZE", "2"}}, 2))), State::ok);
    // mpirun in a batch shell, whose variables belong to other processes
    EXPECT_EQ(state_of(judge_launcher(launcher(
                  {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}}))),
              State::ok);
}

TEST(JudgeLauncher, ProcessesThatDoNotKnowOfEachOther) {
    for (auto const& environment : std::vector<std::map<std::string, std::string>>{
             {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}},
             {{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}},
             {{"PMI_SIZE", "2"}},
             {{"PMIX_RANK", "1"}},
             {{"OMPI_COMM_WORLD_SIZE", "2"}}}) {
        Launcher const found = launcher(environment);
        EXPECT_TRUE(found.is_singleton_of_many());
        EXPECT_EQ(state_of(judge_launcher(found)), State::error) << environment.begin()->first;
        EXPECT_THAT(judge_launcher(found).why, HasSubstr("rank 0 of 1"));
    }
    EXPECT_THAT(judge_launcher(launcher({{"SLURM_STEP_NUM_TASKS", "2"}})).fix, HasSubstr("srun --mpi=pmix"));
    EXPECT_THAT(judge_launcher(launcher({{"PMI_SIZE", "3"}})).seen, HasSubstr("3 processes"));
}

TEST(JudgeLauncher, AloneInABatchShellIsAWarning) {
    Finding const finding = judge_launcher(launcher({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}));
    EXPECT_EQ(state_of(finding), State::warning);
    EXPECT_THAT(finding.fix, HasSubstr("mpirun -np 4"));
    Launcher one_task = launcher({{"SLURM_NTASKS", "1"}});
    EXPECT_EQ(state_of(judge_launcher(one_task)), State::ok);
    one_task.mpi_failure = "not built with SLURM support";
    EXPECT_EQ(state_of(judge_launcher(one_task)), State::warning);
    EXPECT_THAT(judge_launcher(one_task).why, HasSubstr("not built with SLURM support"));
}

TEST(JudgeLauncher, MpiThatCannotStart) {
    Launcher found = launcher({});
    found.mpi_failure = "no orted";
    EXPECT_EQ(state_of(judge_launcher(found)), State::error);
    EXPECT_THAT(judge_launcher(found).seen, HasSubstr("no orted"));
    found = launcher({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "1"}});
    found.mpi_failure = "no PMI";
    EXPECT_EQ(state_of(judge_launcher(found)), State::error);
    EXPECT_THAT(judge_launcher(found).fix, HasSubstr("srun --mpi=pmix"));
}

TEST(JudgeLauncher, ForeignSize) {
    EXPECT_EQ(state_of(judge_launcher(launcher({{"OMPI_COMM_WORLD_SIZE", "3"}}, 2))), State::error);
}

TEST(LauncherOf, WhatIsNoNumberIsNotSet) {
    Launcher const found =
        launcher({{"SLURM_NTASKS", "many"}, {"PMI_SIZE", ""}, {"SLURM_JOB_NUM_NODES", "-2"}});
    EXPECT_FALSE(found.slurm_tasks || found.pmi_size || found.slurm_nodes);
    EXPECT_EQ(launcher({{"SLURM_STEP_NUM_TASKS", "8(x2)"}}).slurm_step_tasks, 8);
}

parallel::LaunchRow row(int host, std::vector<int> cores, int machine_cores = 4) {
    return {host, "node" + std::to_string(host), "cpu", std::move(cores), machine_cores, {}};
}

TEST(JudgeRanks, CountsThemByHost) {
    parallel::LaunchTable const table{{row(0, {0}), row(0, {1}), row(1, {0}), row(1, {1})}};
    Finding const finding =
        judge_ranks(table, launcher({{"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_JOB_NUM_NODES", "2"}}, 4), 0);
    EXPECT_EQ(state_of(finding), State::ok);
    EXPECT_EQ(finding.seen, "4 ranks on 2 hosts: node0 (2), node1 (2)");
}

TEST(JudgeRanks, UnevenIdleOrApart) {
    parallel::LaunchTable const uneven{{row(0, {0}), row(0, {1}), row(1, {0})}};
    EXPECT_EQ(state_of(judge_ranks(uneven, launcher({}, 3), 0)), State::warning);
    parallel::LaunchTable const one{{row(0, {0}), row(0, {1})}};
    Finding const idle =
        judge_ranks(one, launcher({{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_JOB_NUM_NODES", "2"}}, 2), 0);
    EXPECT_EQ(state_of(idle), State::warning);
    EXPECT_THAT(idle.seen, HasSubstr("the job has 2 nodes"));
    EXPECT_EQ(state_of(judge_ranks(one, launcher({{"SLURM_JOB_NUM_NODES", "2"}}), 0)), State::ok)
        << "no launch";
    parallel::LaunchTable apart{{row(0, {0}), row(1, {1})}};
    apart.rows[1].host_name = "node0";
    Finding const finding = judge_ranks(apart, launcher({}, 2), 2);

    EXPECT_EQ(state_of(finding), State::warning);
    EXPECT_THAT(finding.seen, HasSubstr("share no memory"));
}

TEST(JudgeRanks, MoreThanReplicas) {
    parallel::LaunchTable const table{{row(0, {0}), row(0, {1}), row(0, {2})}};
    EXPECT_EQ(state_of(judge_ranks(table, launcher({}, 3), 2)), State::error);
    EXPECT_EQ(state_of(judge_ranks(table, launcher({}, 3), 3)), State::ok);
}

RankView view(int host, std::vector<std::string> uuids, bool expects_one = true) {
    return {host, {std::move(uuids), expects_one}};
}

TEST(JudgeDevices, Cpus) {
    EXPECT_EQ(judge_devices({view(0, {}, false)}, "auto", true).seen, "CPUs (no GPU is here)");
    EXPECT_EQ(judge_devices({view(0, {"A"})}, "cpu", true).seen, "CPUs (--device cpu)");
    EXPECT_EQ(state_of(judge_devices({view(0, {}, false)}, "auto", false)), State::ok);
}

TEST(JudgeDevices, ProgramWithoutCuda) {
    EXPECT_EQ(state_of(judge_devices({view(0, {}, true)}, "auto", false)), State::warning);
    EXPECT_EQ(state_of(judge_devices({view(0, {}, false)}, "cuda", false)), State::error);
}

TEST(JudgeDevices, AGpuEach) {
    EXPECT_EQ(
        state_of(judge_devices({view(0, {"A", "B"}), view(0, {"A", "B"}), view(1, {"C"})}, "auto", true)),
        State::ok);
    EXPECT_EQ(state_of(judge_devices({view(0, {"A"}), view(0, {"B"})}, "cuda", true)), State::ok);
}

TEST(JudgeDevices, WrongOnes) {
    Finding const shared = judge_devices({view(0, {"A"}), view(0, {"A"})}, "auto", true);
    EXPECT_EQ(state_of(shared), State::error);
    EXPECT_THAT(shared.seen, HasSubstr("2 ranks on this host, but 1 GPUs"));
    EXPECT_EQ(state_of(judge_devices({view(0, {"A", "B"}), view(0, {"B", "A"})}, "auto", true)),
              State::error);
    EXPECT_EQ(state_of(judge_devices({view(0, {"A", "B"}), view(0, {})}, "auto", true)), State::error)
        << "some";
    EXPECT_EQ(state_of(judge_devices({view(0, {}, true)}, "auto", true)), State::error) << "expected";
    Finding const none = judge_devices({view(0, {}, false), view(1, {}, false)}, "cuda", true);
    EXPECT_EQ(state_of(none), State::error) << "asked for";
    EXPECT_EQ(none.seen, "no rank sees a GPU");
    Finding const hosts = judge_devices({view(0, {"A"}), view(1, {"A"})}, "auto", true);
    EXPECT_EQ(state_of(hosts), State::error) << "one GPU on two hosts";
    EXPECT_THAT(hosts.seen, HasSubstr("GPU A"));
}

TEST(JudgeGpusPerTask, TheTrapAndItsRelatives) {
    Finding const trap = judge_gpus_per_task({view(0, {"A"}), view(0, {"A"})}, "auto", launcher({}, 2));
    EXPECT_EQ(state_of(trap), State::error);
    EXPECT_THAT(trap.fix, HasSubstr("--gpus-per-node"));
    EXPECT_EQ(state_of(judge_gpus_per_task({view(0, {"A"}), view(0, {"B"})}, "auto", launcher({}, 2))),
              State::warning);
    Launcher const asked = launcher({{"SLURM_GPUS_PER_TASK", "1"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
    EXPECT_EQ(state_of(judge_gpus_per_task({view(0, {})}, "auto", asked)), State::warning);
}

TEST(JudgeGpusPerTask, Well) {
    EXPECT_EQ(state_of(judge_gpus_per_task({view(0, {"A"}), view(0, {"A"})}, "cpu", launcher({}, 2))),
              State::ok);
    EXPECT_EQ(state_of(judge_gpus_per_task({view(0, {"A"}), view(1, {"B"})}, "auto", launcher({}, 2))),
              State::ok);
    EXPECT_EQ(
        state_of(judge_gpus_per_task({view(0, {"A", "B"}), view(0, {"A", "B"})}, "auto", launcher({}, 2))),
        State::ok);
    EXPECT_EQ(state_of(judge_gpus_per_task({view(0, {}), view(0, {})}, "auto", launcher({}, 2))), State::ok);
    EXPECT_EQ(state_of(judge_gpus_per_task({view(0, {})}, "auto", launcher({{"SLURM_GPUS_PER_TASK", "1"}}))),
              State::ok);
}

TEST(JudgeBinding, CoresAgainstThreads) {
    EXPECT_EQ(state_of(judge_binding({{row(0, {0, 1}), row(0, {2, 3})}}, 2)), State::ok);
    Finding const few = judge_binding({{row(0, {0, 1}), row(0, {2})}}, 2);
    EXPECT_EQ(state_of(few), State::warning);
    EXPECT_THAT(few.seen, HasSubstr("rank 1 on node0 may use 1 cores"));
    Finding const unused = judge_binding({{row(0, {0}), row(1, {0})}}, 1);
    EXPECT_EQ(state_of(unused), State::warning);
    EXPECT_THAT(unused.seen, testing::AllOf(HasSubstr("node0 may use 1 of its 4"), HasSubstr("node1")));
}

TEST(JudgeOversubscription, RanksThreadsOrQuota) {
    EXPECT_EQ(state_of(judge_oversubscription({{row(0, {0}), row(0, {1})}}, 1, {0, 0})), State::ok);
    EXPECT_EQ(state_of(judge_oversubscription({{row(0, {0, 1})}}, 2, {2})), State::ok);
    Finding const crowded = judge_oversubscription({{row(0, {0}), row(0, {0})}}, 1, {0, 0});
    EXPECT_EQ(state_of(crowded), State::warning);
    EXPECT_THAT(crowded.seen, HasSubstr("2 ranks share 1 cores"));
    Finding const threads = judge_oversubscription({{row(0, {0, 1}), row(0, {0, 1})}}, 2, {0, 0});
    EXPECT_EQ(state_of(threads), State::warning);
    EXPECT_THAT(threads.seen, HasSubstr("2 ranks with 2 threads each share 2 cores"));
    EXPECT_THAT(threads.fix, HasSubstr("start 1 ranks"));
    Finding const quota = judge_oversubscription({{row(0, {0, 1})}}, 1, {1.5});
    EXPECT_EQ(state_of(quota), State::warning);
    EXPECT_THAT(quota.seen, HasSubstr("may use 1.5"));
}

TEST(CpuQuota, OfTheText) {
    EXPECT_EQ(cpu_quota_of("150000 100000"), 1.5);
    for (char const* const text : {"max 100000", "-1 100000", "", "1", "0 0", "a b"})
        EXPECT_EQ(cpu_quota_of(text), 0);
}

}  // namespace
}  // namespace holdfast::commands::doctor
