#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: job_scripts_test.py SOURCE_DIR: what a reader of jobs/*.sbatch relies on, without SLURM."""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv[1]).resolve()
SCRIPTS = sorted((SOURCE / "jobs").glob("*.sbatch"))
# What every site takes. No account, partition, or GPUs: a site without any refuses the script.
NEUTRAL = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "signal", "requeue", "open-mode", "output", "array"}


def directives(script: Path) -> dict:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", script.read_text(), re.MULTILINE))


def install(prefix: str) -> None:
    """A program that does nothing, and the scripts."""
    for name in ("bin", "share/holdfast"):
        (Path(prefix) / name).mkdir(parents=True)
    (Path(prefix) / "share/holdfast/jobs").symlink_to(SOURCE / "jobs")
    (Path(prefix) / "bin/holdfast").write_text("#!/bin/sh\n")
    (Path(prefix) / "bin/holdfast").chmod(0o755)


class JobScripts(unittest.TestCase):
    def test_directives(self):
        self.assertEqual([script.name for script in SCRIPTS], ["array.sbatch", "eval.sbatch", "train.sbatch"])
        for script in SCRIPTS:
            found = directives(script)
            self.assertEqual(len(found), script.read_text().count("\n#SBATCH"), script)
            self.assertLessEqual(set(found), NEUTRAL, script)
            self.assertEqual(found["open-mode"], "append", "a requeued job would wipe its log")
            self.assertIn("requeue", found)

    def test_warning_is_caught_before_anything_else_runs(self):
        for script in SCRIPTS:
            code = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
            if "signal" in directives(script):
                self.assertRegex(directives(script)["signal"], "^B:USR1@", "mpirun is no job step: without B: nobody hears it")
                self.assertRegex(code[0], "^trap .* USR1", script)

    def test_started_without_slurm(self):
        with tempfile.TemporaryDirectory() as prefix:
            install(prefix)
            for script in SCRIPTS:
                ended = subprocess.run(["bash", script], env={"PATH": f"{prefix}/bin:/usr/bin:/bin"}, capture_output=True, text=True)
                self.assertEqual(ended.returncode, 2, ended)
                self.assertIn("submit the script with sbatch", ended.stderr, script)

    def test_srun_is_told_the_cores_of_a_task(self):
        """It does not take them over from the job."""
        with tempfile.TemporaryDirectory() as prefix:
            install(prefix)
            srun = Path(prefix) / "bin/srun"
            srun.write_text('#!/bin/sh\necho "$SRUN_CPUS_PER_TASK cores: $*"\n')
            srun.chmod(0o755)
            job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_SUBMIT_DIR": prefix}
            for cores, given in (("1", {}), ("3", {"SLURM_CPUS_PER_TASK": "3"})):
                env = {"PATH": f"{prefix}/bin:/usr/bin:/bin", "HOLDFAST_LAUNCHER": "srun"} | job | given
                ended = subprocess.run(["bash", SOURCE / "jobs/eval.sbatch"], env=env, capture_output=True, text=True)
                self.assertEqual(ended.returncode, 0, ended)
                self.assertIn(f"{cores} cores: --ntasks=5 --mpi=pmix", ended.stdout)

    def test_no_names_of_a_site(self):
        for file in (SOURCE / "jobs").iterdir():
            for path in re.findall(r"[\s=\"](/[a-z]+)", file.read_text()):
                self.assertIn(path, ("/etc", "/dev"), file)

    def test_every_variable_is_known_and_documented(self):
        program = "".join(path.read_text() for path in (SOURCE / "src/commands").glob("*.cpp"))
        documentation = (SOURCE / "docs/environment.md").read_text()
        for file in (SOURCE / "jobs").iterdir():
            for name in set(re.findall(r"\bHOLDFAST_[A-Z_]+", file.read_text())) - {"HOLDFAST_RUN", "HOLDFAST_DATA"}:
                flag = name.removeprefix("HOLDFAST_").lower().replace("_", "-")
                is_known = f'"{name}"' in program or f'"--{flag}"' in program
                self.assertTrue(is_known, f"{file}: {name} would be a usage error")
                self.assertIn(f"`{name}`", documentation, file)


unittest.main(argv=sys.argv[:1], verbosity=2)
