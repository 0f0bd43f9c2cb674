# SPDX-License-Identifier: Apache-2.0
"""A real SLURM cluster for the tests of one file: virtual nodes n1, n2, ... on this host, run by daemons of its own."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest
from pathlib import Path

NODES = 8  # slurm.conf.in says which is for what
CONFIGURATION = Path(__file__).with_name("slurm.conf.in")


class SlurmLab:
    """Skips the test where SLURM or root is missing. `environment` is that of every job."""

    def __init__(self, folder: Path, environment: dict):
        os.environ["PATH"] += ":/usr/sbin:/sbin"
        for program in ("slurmctld", "slurmd", "sbatch"):
            if shutil.which(program) is None:
                raise unittest.SkipTest(f"no {program} (packages slurm-wlm and slurm-client)")
        if os.geteuid() != 0:
            raise unittest.SkipTest("the SLURM daemons need root")
        self.folder = folder
        names = [f"n{number + 1}" for number in range(NODES)]
        for name in ["state", *(f"{kind}{name}" for name in names for kind in ("spool.", "tmp/"))]:
            (folder / name).mkdir(parents=True)
        # Ports of our own, so that tests in other clones do not meet.
        port = random.randrange(20000, 30000 - NODES)
        text = CONFIGURATION.read_text()
        values = {"DIR": folder, "HOST": socket.gethostname().split(".")[0], "CTLD_PORT": port, "NODES": NODES}
        values["NODE_PORTS"] = f"{port + 1}-{port + NODES}"
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        configuration = folder / "slurm.conf"
        configuration.write_text(text)
        # One host plays all nodes: Open MPI's shared-memory transport must not believe the host names.
        self.environment = environment | {
            "SLURM_CONF": str(configuration),
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_btl_tcp_if_include": "lo",
        }
        self.daemon("slurmctld", "-c")
        for name in names:
            self.daemon("slurmd", "-N", name)
        self.wait_for("idle nodes", lambda: set(self.call("sinfo", "-h", "-o", "%t").split()) == {"idle"}, 60)

    def daemon(self, program: str, *arguments: str) -> None:
        command = [program, *arguments, "-f", self.environment["SLURM_CONF"]]
        subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def lose(self, node: str) -> None:
        """As if the node were cut off: its daemon is gone, its jobs' processes are not."""
        file = self.folder / f"slurmd.{node}.pid"
        os.kill(int(file.read_text()), signal.SIGKILL)
        file.unlink()
        self.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def bring_back(self, node: str) -> None:
        self.daemon("slurmd", "-N", node)
        self.wait_for(f"{node} to be idle", lambda: self.call("sinfo", "-h", "-n", node, "-o", "%t") == "idle", 60)

    def stop(self) -> None:
        """Only what belongs to this cluster: other daemons on this host are none of our business."""
        self.call("scancel", "--quiet", "--user=root", check=False)
        self.wait_while(lambda: self.call("squeue", "-h", check=False), 60)
        for file in self.folder.glob("slurm*.pid"):
            subprocess.run(["kill", file.read_text().strip()], check=False)
        self.wait_while(lambda: list(self.folder.glob("slurm*.pid")), 30)  # each removes its own as it ends
        for process in self.processes():
            try:
                os.kill(process, signal.SIGKILL)  # of jobs that their daemon could not end
            except ProcessLookupError:
                pass

    @staticmethod
    def wait_while(condition, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while condition() and time.monotonic() < deadline:
            time.sleep(0.2)

    def processes(self) -> list[int]:
        """Daemons and all that they have started, known by the configuration in their environment."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue  # it has just ended
        return found

    def wait_for(self, what: str, condition, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                logs = [f"{file}:\n{file.read_text()[-3000:]}" for file in self.folder.glob("*.log")]
                raise AssertionError("\n".join([f"waited in vain for {what}", *logs]))
            time.sleep(0.2)

    def call(self, *command, check: bool = True, env: dict = {}) -> str:
        variables = self.environment | {name: str(value) for name, value in env.items()}
        done = subprocess.run([str(part) for part in command], env=variables, text=True, capture_output=True)
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def job(self, job: str) -> dict:
        """What `scontrol show job` says, by name."""
        return dict(re.findall(r"(\w+)=(\S*)", self.call("scontrol", "show", "job", job, check=False)))
