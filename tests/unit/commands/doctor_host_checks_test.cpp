// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/doctor/host_checks.hpp"
#include "unit/commands/expect_finding.hpp"

namespace holdfast::commands::doctor {
namespace {

using testing::HasSubstr;

TEST(JudgeSameness, SaysWhatDiffers) {
    EXPECT_EQ(state_of(judge_sameness("programs", "program", "", "fix")), State::ok);
    Finding const finding =
        judge_sameness("programs", "program", "'A' on rank 0, 'B' on rank 1", "install once");
    EXPECT_EQ(state_of(finding), State::error);
    EXPECT_THAT(finding.seen, HasSubstr("'B' on rank 1"));
    EXPECT_EQ(finding.fix, "install once");
}

TEST(JudgeThreads, NamesTheRank) {
    EXPECT_EQ(state_of(judge_threads(2, {"", ""})), State::ok);
    Finding const finding = judge_threads(2, {"", "needs 2 but gets 1 (bits); unset OMP_THREAD_LIMIT"});
    EXPECT_EQ(state_of(finding), State::error);
    EXPECT_EQ(finding.seen, "rank 1: needs 2 but gets 1");
}

SharedMemory shared_memory(std::uint64_t free_mb, bool needs_folder = false) {
    SharedMemory host;
    host.host = "node0";
    host.num_ranks = 4;
    host.folder = "/dev/shm";
    host.free_bytes.value = free_mb << 20;
    host.needs_folder = needs_folder;
    host.needed_bytes = std::uint64_t{500} << 20;
    return host;
}

TEST(JudgeSharedMemory, OfMpiItself) {
    EXPECT_EQ(state_of(judge_shared_memory({shared_memory(16)})), State::ok);
    EXPECT_EQ(state_of(judge_shared_memory({shared_memory(15)})), State::warning);
    EXPECT_THAT(judge_shared_memory({shared_memory(64), shared_memory(15)}).seen,
                HasSubstr("has 15 MB free"));
    SharedMemory alone = shared_memory(0);
    alone.num_ranks = 1;
    EXPECT_EQ(state_of(judge_shared_memory({alone})), State::ok);
}

TEST(JudgeSharedMemory, OfGradientsAndNccl) {
    EXPECT_EQ(state_of(judge_shared_memory({shared_memory(516, true)})), State::ok);
    Finding const finding = judge_shared_memory({shared_memory(515, true)});
    EXPECT_EQ(state_of(finding), State::error);
    EXPECT_THAT(finding.fix, HasSubstr("OMPI_MCA_osc_sm_backing_directory"));
    SharedMemory gpus = shared_memory(1023);
    gpus.uses_gpus = true;
    EXPECT_EQ(state_of(judge_shared_memory({gpus})), State::warning);
    gpus.free_bytes.value = std::uint64_t{1} << 30;
    EXPECT_EQ(state_of(judge_shared_memory({gpus})), State::ok);
}

TEST(JudgeSharedMemory, Unknown) {
    SharedMemory host = shared_memory(0);
    host.free_bytes.unknown = "No such file or directory";
    EXPECT_EQ(state_of(judge_shared_memory({host})), State::unknown);
}

TEST(JudgeClock, AheadAndBehind) {
    std::vector<std::string> const hosts = {"node0", "node1", "node2"};
    EXPECT_EQ(state_of(judge_clock({0, 0.9, -1.0}, hosts)), State::ok);
    Finding const ahead = judge_clock({0, 0.5, 30}, hosts);
    EXPECT_EQ(state_of(ahead), State::warning);
    EXPECT_EQ(ahead.seen, "the clock of node2 (rank 2) is 30.0 s ahead of that of node0");
    Finding const behind = judge_clock({0, -1.1, 1}, hosts);
    EXPECT_EQ(behind.seen, "the clock of node1 (rank 1) is 1.1 s behind that of node0");
}

TEST(JudgeRequeue, ByWhatScontrolSays) {
    EXPECT_EQ(state_of(judge_requeue("", {})), State::ok);
    EXPECT_EQ(state_of(judge_requeue("7", {"JobId=7 BatchFlag=1\n   Requeue=1 Restarts=0", ""})), State::ok);
    Finding const finding = judge_requeue("7", {"JobId=7\n   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0", ""});
    EXPECT_EQ(state_of(finding), State::warning);
    EXPECT_THAT(finding.fix, HasSubstr("JobId=7 Requeue=1"));
    EXPECT_EQ(state_of(judge_requeue("7", {"Requeue=0 BatchFlag=0", ""})), State::ok) << "interactive";
    EXPECT_EQ(state_of(judge_requeue("7", {"", "there is no scontrol here"})), State::unknown);
    EXPECT_EQ(state_of(judge_requeue("7", {"JobId=7 NoRequeue=0", ""})), State::unknown);
}

Nccl nccl() {
    Nccl found;
    found.built = "2.28.9";
    found.loaded.value = "2.28.9";
    found.loaded_files = {"/a/libnccl.so.2"};
    return found;
}

TEST(JudgeNccl, OneAndTheRightOne) {
    EXPECT_EQ(state_of(judge_nccl({})), State::ok);
    EXPECT_EQ(state_of(judge_nccl(nccl())), State::ok);
    Nccl two = nccl();
    two.loaded_files.push_back("/b/libnccl.so.2");
    EXPECT_EQ(state_of(judge_nccl(two)), State::error);
    two.built = "none";
    EXPECT_EQ(state_of(judge_nccl(two)), State::error) << "even where this program uses none";
    Nccl older = nccl();
    older.loaded.value = "2.20.5";
    EXPECT_EQ(state_of(judge_nccl(older)), State::error);
    Nccl another = nccl();
    another.other_files = {"/b/libnccl.so.2"};
    EXPECT_EQ(state_of(judge_nccl(another)), State::warning);
    Nccl missing = nccl();
    missing.loaded = {"", "libnccl.so.2 cannot be loaded"};
    EXPECT_EQ(state_of(judge_nccl(missing)), State::unknown);
}

LibTorch libtorch() {
    LibTorch found;
    found.built = found.loaded = "2.15.0";
    found.folder.value = found.built_folder = "/torch/lib";
    return found;
}

TEST(JudgeLibTorch, WhereItIsAndWhich) {
    EXPECT_EQ(state_of(judge_libtorch(libtorch())), State::ok);
    EXPECT_EQ(judge_libtorch(libtorch()).seen, "LibTorch 2.15.0 in /torch/lib");
    LibTorch other = libtorch();
    other.folder.value = "/other/lib";
    EXPECT_EQ(state_of(judge_libtorch(other)), State::warning);
    LibTorch version = libtorch();
    version.loaded = "2.14.0";
    EXPECT_EQ(state_of(judge_libtorch(version)), State::warning);
    version.loaded = "unknown";
    EXPECT_EQ(state_of(judge_libtorch(version)), State::ok);
    LibTorch cuda = libtorch();
    cuda.needs_cuda = true;
    EXPECT_EQ(state_of(judge_libtorch(cuda)), State::error);
    cuda.has_cuda = true;
    EXPECT_EQ(state_of(judge_libtorch(cuda)), State::ok);
    LibTorch lost = libtorch();
    lost.folder = {"", "not loaded"};
    EXPECT_EQ(state_of(judge_libtorch(lost)), State::unknown);
}

TEST(JudgeVersions, ShowsThem) { EXPECT_EQ(judge_versions("holdfast 1").seen, "holdfast 1"); }

TEST(JudgeData, ReadBySomeAndTheSame) {
    std::vector<std::string> const hosts = {"node0", "node1"};
    EXPECT_EQ(state_of(judge_data("", "", {}, {}, "")), State::ok);
    EXPECT_EQ(judge_data("d", "5 images", {"", ""}, hosts, "").seen, "d: 5 images");
    Finding const missing =
        judge_data("d", "", {"", "d does not exist"}, hosts, "'1' on rank 0, '' on rank 1");
    EXPECT_EQ(state_of(missing), State::error);
    EXPECT_EQ(missing.seen, "rank 1 (node1): d does not exist");
    EXPECT_EQ(state_of(judge_data("d", "", {"", ""}, hosts, "'1' on rank 0, '2' on rank 1")), State::error);
}

}  // namespace
}  // namespace holdfast::commands::doctor
