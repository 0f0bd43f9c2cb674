#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""holdfast doctor: every fault, injected for real where that is possible, gives its own finding and exit code, and a healthy launch
gives none.
"""

import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW, Ended, Launch, mpirun, narrow, run  # noqa: E402

CHECKS = """launcher ranks devices gpus-per-task binding oversubscription threads numerics versions libtorch nccl programs settings
run-directory shared fsync space shared-memory clock data requeue""".split()
CORES = len(os.sched_getaffinity(0))
# What no launch of these tests can help where they run, in a container with few of a machine's cores, or with a slow disk.
OF_THIS_MACHINE = {"fsync"} | ({"binding"} if 2 * CORES <= (os.cpu_count() or 1) else set())
MAY_MOUNT = subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
needs_mount = unittest.skipUnless(MAY_MOUNT, "may not make a mount namespace (needs root)")


def built_for_tests(name: str) -> Path:
    return holdfast_run.binary.parents[1] / "tests" / name


def findings(ended: Ended) -> dict[str, dict]:
    """By check."""
    found = json.loads(ended.stdout)
    assert found["ok"] == (ended.code == 0), ended
    return {finding["check"]: finding for finding in found["findings"]}


class DoctorCase(holdfast_run.TestCase):
    def doctor(self, *flags, ranks: int | None = None, code: int = 0, env: dict = {}, around: list = []) -> Ended:
        """`around`: a program that starts all of it."""
        program = [holdfast_run.binary, "doctor", *flags]
        command = program if ranks is None else mpirun(["-np", ranks, *program])
        ended = Launch([*around, *command], {"HOLDFAST_DEVICE": "cpu"} | env, self.folder).finish()
        self.assertEqual(ended.code, code, ended)
        return ended

    def doctor_by_rank(self, *of_rank: tuple, flags: list = [], code: int = 0, program: Path | None = None, env: dict = {}) -> Ended:
        """Each of `of_rank` is (variables, working directory, programs around) of one rank."""
        parts = []
        for variables, folder, around in of_rank:
            exported = [part for name, value in variables.items() for part in ("-x", f"{name}={value}")]
            parts.append(["-np", 1, *exported, "--wdir", folder, *around, program or holdfast_run.binary, "doctor", *flags])
        cpus = {"HOLDFAST_DEVICE": "cpu"} if program is None else {}
        ended = Launch(mpirun(*parts), cpus | env, self.folder).finish()
        self.assertEqual(ended.code, code, ended)
        return ended

    def assert_finding(self, ended: Ended, check: str, state: str, *words: str, others: set = frozenset()) -> None:
        """And that nothing else is wrong, but perhaps `others`."""
        found = findings(ended)
        self.assertEqual(found[check]["state"], state, ended)
        for word in words:
            self.assertIn(word, found[check]["seen"] + found[check]["why"], ended)
        self.assertTrue(found[check]["why"], ended)
        self.assertTrue(found[check]["fix"] or state == "unknown", ended)
        wrong = {name for name, finding in found.items() if finding["state"] != "ok"}
        self.assertEqual(wrong - {check} - OF_THIS_MACHINE - set(others), set(), ended)


class Healthy(DoctorCase):
    def test_nothing_is_found_alone(self):
        ended = self.doctor("--json")
        found = json.loads(ended.stdout)
        self.assertEqual(list(found), ["format", "ok", "ranks", "versions", "findings"])
        self.assertEqual((found["format"], found["ok"]), (1, True))
        self.assertEqual([list(rank) for rank in found["ranks"]], [["rank", "host", "device", "cores"]])
        self.assertLessEqual({"holdfast", "libtorch", "mpi", "hdf5"}, set(found["versions"]))
        self.assertEqual([finding["check"] for finding in found["findings"]], CHECKS)
        for finding in found["findings"]:
            self.assertEqual(list(finding), ["check", "state", "seen", "why", "fix"])
            if finding["check"] not in OF_THIS_MACHINE:
                self.assertEqual((finding["state"], finding["why"], finding["fix"]), ("ok", "", ""), finding)
        self.assertEqual(list(self.folder.iterdir()), [], "it left something behind")

    def test_nothing_is_found_with_two_ranks(self):
        ended = self.doctor("--json", "--data", "synthetic:20", ranks=2)
        wrong = {name for name, finding in findings(ended).items() if finding["state"] != "ok"}
        self.assertEqual(wrong - OF_THIS_MACHINE, set(), ended)
        self.assertEqual(len(json.loads(ended.stdout)["ranks"]), 2)
        self.assertIn("2 ranks by mpirun", findings(ended)["launcher"]["seen"])
        self.assertIn("20", findings(ended)["data"]["seen"])

    def test_table_for_people(self):
        ended = self.doctor(ranks=2)
        lines = ended.stdout.splitlines()
        self.assertIn("rank  host", lines[0])
        for check in CHECKS:
            self.assertTrue(any(line.startswith(check + " ") for line in lines), f"{check}: {ended}")
        self.assertRegex(lines[-1], r"^0 errors, \d+ warnings, 0 not known$")


class Ranks(DoctorCase):
    def test_singletons(self):
        ended = self.doctor("--json", env={"SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2, "SLURM_PROCID": 0}, code=93)
        self.assert_finding(ended, "launcher", "error", "srun started 2 processes")

    def test_cores(self):
        one_core = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        bound = self.doctor("--json", around=one_core)
        if (os.cpu_count() or 1) > 1:
            self.assert_finding(bound, "binding", "warning", "may use 1 of its")
        crowded = self.doctor("--json", ranks=2, around=one_core)
        self.assert_finding(crowded, "oversubscription", "warning", "2 ranks share 1 cores", others={"binding"})

    def test_threads(self):
        many = self.doctor("--json", "--threads", CORES + 1)
        self.assert_finding(many, "binding", "warning", f"with {CORES + 1} threads", others={"oversubscription"})
        limited = self.doctor("--json", "--threads", 2, env={"OMP_THREAD_LIMIT": 1}, code=93)
        self.assert_finding(limited, "threads", "error", "rank 0: a replica needs 2 OpenMP threads but gets 1", others={"binding"})

    def test_more_ranks_than_replicas(self):
        ended = self.doctor("--json", "--replicas", 1, ranks=2, code=93)
        self.assert_finding(ended, "ranks", "error", "for 1 replicas")


class Installation(DoctorCase):
    def test_other_settings(self):
        ended = self.doctor_by_rank(({}, ".", []), ({"HOLDFAST_EPOCHS": 4}, ".", []), flags=["--json"], code=93)
        self.assert_finding(ended, "settings", "error", "on rank 1")

    def test_other_program(self):
        other = {"LD_PRELOAD": holdfast_run.library_of_other_versions, "OTHER_VERSION_OF": "mpi"}
        ended = self.doctor_by_rank(({}, ".", []), (other, ".", []), flags=["--json"], code=93)
        self.assert_finding(ended, "programs", "error", "'Open MPI v99.0' on rank 1")

    def test_other_libtorch(self):
        other = {"LD_PRELOAD": holdfast_run.library_of_other_versions, "OTHER_VERSION_OF": "libtorch"}
        self.assert_finding(self.doctor("--json", env=other), "libtorch", "warning", "99.0 is loaded")
        of_rank_1 = self.doctor_by_rank(({}, ".", []), (other, ".", []), flags=["--json"], code=93)
        self.assert_finding(of_rank_1, "libtorch", "warning", "rank 1 (", "99.0 is loaded", others={"programs", "numerics"})

    def test_other_instruction_set(self):
        if json.loads(run("info", "--json").stdout)["cpu_capability"] == "DEFAULT":
            self.skipTest("this processor has one instruction set only")
        ended = self.doctor_by_rank(({}, ".", []), ({"ATEN_CPU_CAPABILITY": "default"}, ".", []), flags=["--json"], code=93)
        self.assert_finding(ended, "numerics", "error", "on rank 1")

    def test_two_nccls(self):
        for name in "ab":
            (self.folder / name).mkdir()
            shutil.copy(holdfast_run.library_of_other_versions, self.folder / name / "libnccl.so.2")
        both = {"LD_PRELOAD": " ".join(str(self.folder / name / "libnccl.so.2") for name in "ab")}
        seen = [" libnccl are loaded", str(self.folder / "a"), str(self.folder / "b")]  # 3 of them where the program has its own
        self.assert_finding(self.doctor("--json", env=both, code=93), "nccl", "error", *seen)
        of_rank_1 = self.doctor_by_rank(({}, ".", []), (both, ".", []), flags=["--json"], code=93)
        self.assert_finding(of_rank_1, "nccl", "error", f"rank 1 ({os.uname().nodename}): ", *seen)


class Disk(DoctorCase):
    def mounted(self, *mounts: str) -> list:
        """A program that runs another where these are mounted."""
        return ["unshare", "--mount", "sh", "-euc", "".join(f"mount {mount}; " for mount in mounts) + '"$@"', "sh"]

    def test_no_folder(self):
        (self.folder / "file").write_text("x")
        ended = self.doctor("--json", "--run", "file", code=93)
        self.assert_finding(ended, "run-directory", "error", "is no folder", others={"shared", "fsync"})
        ended = self.doctor("--json", "--run", "/proc/run", code=93)
        self.assert_finding(ended, "run-directory", "error", "/proc cannot be written", others={"shared", "fsync", "space"})

    @needs_mount
    def test_read_only(self):
        (self.folder / "run").mkdir()
        read_only = self.mounted("--bind run run", "-o remount,bind,ro run")
        ended = self.doctor("--json", "--run", "run", around=read_only, code=93)
        self.assert_finding(ended, "run-directory", "error", "Read-only file system", others={"shared", "fsync"})

    @needs_mount
    def test_tiny(self):
        (self.folder / "run").mkdir()
        tiny = self.mounted("-t tmpfs -o size=1m tmpfs run")
        ended = self.doctor("--json", "--run", "run/new", "--model", "resnet18", around=tiny, code=93)
        self.assert_finding(ended, "space", "error", "1.0 MB free")
        self.assertEqual(findings(ended)["fsync"]["state"], "unknown", ended)
        self.assertIn("No space left on device", findings(ended)["fsync"]["why"])
        fits = self.doctor("--json", "--run", "run", "--model", "resnet18", "--width", 1, "--keep", 7, around=tiny)
        self.assert_finding(fits, "space", "warning", "8 more checkpoints")

    def test_not_the_same_folder(self):
        for name in "ab":
            (self.folder / name).mkdir()
        ended = self.doctor_by_rank(({}, "a", []), ({}, "b", []), flags=["--json", "--run", "run"], code=93)
        self.assert_finding(ended, "shared", "error", "rank 1", "does not see", "No such file or directory")

    @needs_mount
    def test_not_the_same_disk(self):
        (self.folder / "run").mkdir()
        own = self.mounted("-t tmpfs tmpfs run")
        ended = self.doctor_by_rank(({}, ".", []), ({}, ".", own), flags=["--json", "--run", "run"], code=93)
        self.assert_finding(ended, "shared", "error", "rank 1", "does not see")
        self.assertEqual(list((self.folder / "run").iterdir()), [])

    def test_disk_that_hangs(self):
        hold = self.folder / "hold"
        hold.touch()
        held = {"LD_PRELOAD": built_for_tests("libheld_fsync.so"), "HELD_FSYNC_FILE": hold, "HELD_FSYNC_PATH": ".holdfast-doctor"}
        ended = self.doctor("--json", env=held, code=93)
        self.assert_finding(ended, "run-directory", "error", "no answer within 10 s", others={"shared"})


class Host(DoctorCase):
    @needs_mount
    def test_small_shared_memory(self):
        tiny = ["unshare", "--mount", "sh", "-euc", 'mount -t tmpfs -o size=4m tmpfs /dev/shm; "$@"', "sh"]
        self.assert_finding(self.doctor("--json", ranks=2, around=tiny), "shared-memory", "warning", "/dev/shm on")

    def test_clock(self):
        late = {"LD_PRELOAD": built_for_tests("libshifted_clock.so"), "SHIFTED_CLOCK_SECONDS": 100}
        ended = self.doctor_by_rank(({}, ".", []), (late, ".", []), flags=["--json"])
        self.assert_finding(ended, "clock", "warning", "(rank 1) is", "s ahead of that of")

    def test_data(self):
        (self.folder / "a").mkdir()
        missing = self.doctor("--json", "--data", "nowhere", code=93)
        self.assert_finding(missing, "data", "error", "rank 0", "nowhere")

    def test_other_data_on_one_rank(self):
        for name, source in (("a", "synthetic:40"), ("b", "synthetic:41")):
            (self.folder / name).mkdir()
            self.run_ok("pack", source, self.folder / name / "set.h5")
        ended = self.doctor_by_rank(({}, "a", []), ({}, "b", []), flags=["--json", "--data", "set.h5", "--run", self.folder / "run"], code=93)
        self.assert_finding(ended, "data", "error", "on rank 0", "on rank 1")

    def scontrol(self, script: str) -> dict:
        program = self.folder / "scontrol"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return {"SLURM_JOB_ID": 7, "PATH": f"{self.folder}:{os.environ['PATH']}"}

    def test_requeue(self):
        allowed = self.doctor("--json", env=self.scontrol('echo "JobId=$3 Requeue=1 BatchFlag=1"'))
        self.assertEqual(findings(allowed)["requeue"]["state"], "ok", allowed)
        forbidden = self.doctor("--json", env=self.scontrol('echo "JobId=$3 Requeue=0 BatchFlag=1"'))
        self.assert_finding(forbidden, "requeue", "warning", "job 7 may not be requeued")
        for script, why in (("echo slurm_load_jobs error >&2; exit 1", "slurm_load_jobs error"), ("sleep 600", "has not answered")):
            self.assert_finding(self.doctor("--json", env=self.scontrol(script)), "requeue", "unknown", why)
        (self.folder / "bin").mkdir()
        for name in ("orted", "prted"):  # which MPI starts for a process without a launcher
            if daemon := shutil.which(name):
                (self.folder / "bin" / name).symlink_to(daemon)
        no_ssh = {"OMPI_MCA_plm_rsh_agent": "/bin/sh"}  # it looks for one at its start, and needs none here
        nowhere = self.doctor("--json", env={"SLURM_JOB_ID": 7, "PATH": self.folder / "bin"} | no_ssh)
        self.assert_finding(nowhere, "requeue", "unknown", "there is no scontrol here")


class Train(DoctorCase):
    def test_goes_on_when_all_is_well(self):
        plain, checked = self.folder / "plain", self.folder / "checked"
        self.run_ok("train", *NARROW, "--epochs", 1, "--run", plain, ranks=2)
        ended = self.run_ok("train", *NARROW, "--epochs", 1, "--run", checked, "--doctor", ranks=2)
        self.assertIn("0 errors", ended.stdout)
        self.assert_same_result(checked, plain)

    def test_does_not_begin_otherwise(self):
        flags = ["train", *narrow(threads=2), "--run", self.folder / "run", "--doctor"]
        limited = run(*flags, ranks=2, env={"OMP_THREAD_LIMIT": 1})
        self.assert_fails(limited, 93, "'holdfast doctor' finds 1 errors", "threads")
        alone = run(*flags, env={"OMPI_MCA_btl": "no_such_transport"})
        self.assert_fails(alone, 93, "MPI cannot start")
        self.assertFalse((self.folder / "run").exists())


class Quick(DoctorCase):
    def test_is_silent_when_all_is_well(self):
        for ranks in (None, 2):
            ended = self.doctor("--quick", "--run", "/proc/no/such/run", ranks=ranks)
            self.assertEqual(ended.text, "", ended)

    def test_singletons(self):
        """Two processes, each of which thinks that it is rank 0 of 1. The second keeps silent."""
        job = {"SLURM_JOB_ID": 1, "SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2}
        first = self.doctor("--quick", env=job | {"SLURM_PROCID": 0}, code=93)
        self.assertIn("error: launcher: srun started 2 processes", first.stderr)
        self.assertIn("srun --mpi=pmix", first.stderr)
        second = self.doctor("--quick", env=job | {"SLURM_PROCID": 1}, code=93)
        self.assertEqual(second.text, "", second)
        self.doctor("--quick", env={"SLURM_NTASKS": 2, "SLURM_PROCID": 1}, code=93)

    def test_alone_in_a_batch_shell(self):
        ended = self.doctor("--quick", env={"SLURM_NTASKS": 2, "SLURM_PROCID": 0})
        self.assertIn("warning: launcher: one process without a launcher, in a job of 2 tasks", ended.stderr)

    def test_mpirun_of_another_mpi(self):
        ended = self.doctor("--quick", env={"PMI_SIZE": 2, "PMI_RANK": 0}, code=93)
        self.assertIn("error: launcher: 2 processes were started by a launcher of another MPI", ended.stderr)

    def test_mpi_that_cannot_start(self):
        ended = self.doctor("--quick", env={"OMPI_MCA_btl": "no_such_transport"}, code=93)
        self.assertIn("error: launcher: MPI cannot start", ended.stderr)

    def test_job_with_idle_nodes(self):
        ended = self.doctor("--quick", ranks=2, env={"SLURM_JOB_NUM_NODES": 2})
        self.assertIn("warning: ranks: ", ended.stderr)

    def gpus(self, *gpus_of_rank: str, flags: list = [], env: dict = {}, code: int = 0) -> Ended:
        program = built_for_tests("holdfast_with_fake_gpus")
        ranks = [({"FAKE_GPUS": gpus}, ".", []) for gpus in gpus_of_rank]
        return self.doctor_by_rank(*ranks, flags=["--quick", *flags], program=program, env=env, code=code)

    def test_gpus(self):
        self.assertEqual(self.gpus("GPU-a GPU-b", "GPU-a GPU-b").text, "")
        self.assertEqual(self.gpus("", "").text, "")
        self.assertEqual(self.gpus("GPU-a", "GPU-a", flags=["--device", "cpu"]).text, "")
        trap = self.gpus("GPU-a", "GPU-a", code=93).stderr
        self.assertIn("error: devices: 2 ranks on this host, but 1 GPUs visible", trap)
        self.assertIn("error: gpus-per-task: all 2 ranks of host 0 see one GPU, the same one (GPU-a)", trap)
        own = self.gpus("GPU-a", "GPU-b").stderr
        self.assertIn("warning: gpus-per-task: each rank of host 0 sees its own GPU only", own)
        twice = self.gpus("GPU-a GPU-b", "GPU-b GPU-a", code=93).stderr
        self.assertIn("error: devices: local ranks 0 and 1 would both use GPU GPU-a", twice)
        some = self.gpus("GPU-a", "", code=93).stderr
        self.assertIn("error: devices: 1 of 2 ranks see a GPU", some)
        self.assertIn("error: devices", self.gpus("", "", flags=["--device", "cuda"], code=93).stderr)
        given = self.gpus("", "", env={"SLURM_JOB_GPUS": "0"}, code=93).stderr
        self.assertIn("error: devices: no rank can use a GPU", given)
        asked = self.gpus("", "", env={"SLURM_GPUS_PER_TASK": 1}).stderr
        self.assertIn("warning: gpus-per-task: the job asks for 1 GPUs per task", asked)


if __name__ == "__main__":
    holdfast_run.main()
