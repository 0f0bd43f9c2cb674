#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""holdfast doctor: every fault, injected for real where that is possible, gives its own finding and exit code, and a healthy launch
gives none.
"""

import json
import os
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import Ended, Launch, mpirun, start  # noqa: E402

QUICK_CHECKS = ["launcher", "ranks", "devices", "gpus-per-task"]
CHECKS = QUICK_CHECKS + ["binding", "oversubscription"]


def findings(ended: Ended) -> dict[str, dict]:
    """By check."""
    found = json.loads(ended.stdout)
    assert found["ok"] == (ended.code == 0), ended
    return {finding["check"]: finding for finding in found["findings"]}


class DoctorCase(holdfast_run.TestCase):
    def doctor(self, *flags, ranks: int | None = None, contexts: list | None = None, env: dict = {}, code: int = 0) -> Ended:
        """Each context is [ranks, environment, program, flags...] of a part of the launch."""
        if contexts is None:
            ended = start("doctor", *flags, "--run", self.folder / "run", ranks=ranks, env=env, cwd=self.folder).finish()
        else:
            parts = []
            for num_ranks, variables, *command in contexts:
                exported = [part for name, value in variables.items() for part in ("-x", f"{name}={value}")]
                parts.append(["-np", num_ranks, *exported, *command])
            ended = Launch(mpirun(*parts), env, self.folder).finish()
        self.assertEqual(ended.code, code, ended)
        return ended

    def assert_finding(self, ended: Ended, check: str, state: str, *words: str) -> None:
        """And that it is the only one that is not well."""
        found = findings(ended)
        self.assertEqual(found[check]["state"], state, ended)
        for word in words:
            self.assertIn(word, found[check]["seen"], ended)
        self.assertTrue(found[check]["why"] and found[check]["fix"], ended)
        others = {name for name, finding in found.items() if finding["state"] in ("warning", "error")} - {check}
        self.assertEqual(others, set(), ended)


class Quick(DoctorCase):
    def test_is_silent_when_all_is_well(self):
        for ranks in (None, 2):
            began = time.monotonic()
            ended = self.doctor("--quick", ranks=ranks)
            self.assertEqual(ended.text, "", ended)
            self.assertLess(time.monotonic() - began, 60)
            self.assertFalse((self.folder / "run").exists(), "it touched the disk")

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
        program = [holdfast_run.binary_with_fake_gpus, "doctor", "--quick", *flags]
        return self.doctor(contexts=[[1, {"FAKE_GPUS": gpus}, *program] for gpus in gpus_of_rank], env=env, code=code)

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
