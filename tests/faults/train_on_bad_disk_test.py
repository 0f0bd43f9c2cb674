#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole program while its disk fails: at points spread over all file calls of a run one call fails, once or from then on. The
launch ends with 0 or 75 and a message, every checkpoint it leaves is good, and the next launch ends with the bytes of an
undisturbed run. --points N: how many points (default 8); --all: every one (an hour)."""

import json
import sys
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import checkpoints, narrow  # noqa: E402

FLAGS = narrow(epochs=2, save_every_steps=2)
FAULTS = [("open", "ENOSPC"), ("write", "ENOSPC"), ("write", "EDQUOT"), ("write", "EIO"), ("write", "short"), ("fsync", "EIO"),
          ("sync_folder", "EIO"), ("close", "EDQUOT"), ("rename", "ENOSPC"), ("mkdir", "ENOSPC"), ("unlink", "EIO")]  # fmt: skip
MESSAGES = {"ENOSPC": "No space left on device", "EDQUOT": "Disk quota exceeded", "EIO": "Input/output error"}
GOLDEN = 0.6180339887498949  # successive multiples spread evenly over [0, 1)


def preloaded(run: Path, **variables) -> dict:
    return {"LD_PRELOAD": LIBRARY, "FILE_CALLS_ROOT": run, **{f"FILE_CALLS_{name}": value for name, value in variables.items()}}


class BadDisk(holdfast_run.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed, log = cls.shared_folder / "run", cls.shared_folder / "calls"
        ended = holdfast_run.run("train", *FLAGS, "--run", cls.undisturbed, env=preloaded(cls.undisturbed, LOG=log))
        assert ended.code == 0, ended
        cls.counts = Counter(line.split()[0] for line in log.read_text().splitlines())
        assert all(cls.counts[call] > 0 for call, _ in FAULTS), cls.counts

    def points(self) -> list[str]:
        every = [f"{call}:{number}:{error}{on}" for call, error in FAULTS for number in range(self.counts[call])
                 for on in ("", ":on")]  # fmt: skip
        if POINTS is None:
            return every
        return [every[int(len(every) * (GOLDEN * i % 1))] for i in range(POINTS)]

    def test_every_launch_ends_well_and_the_next_one_finishes_the_run(self):
        codes = Counter()
        for number, point in enumerate(self.points()):
            with self.subTest(point):
                run = self.folder / str(number)
                launch = holdfast_run.start("train", *FLAGS, "--run", run, env=preloaded(run, FAIL=point))
                self.addCleanup(launch.kill)
                ended = launch.finish()
                codes[ended.code] += 1
                # A run directory that cannot even be made is for the person to look at.
                self.assertIn(ended.code, (0, 75, 93) if point.startswith("mkdir") else (0, 75), ended)
                self.assertNotIn("internal error", ended.text)
                if ended.code != 0:
                    self.assertIn(MESSAGES[point.split(":")[2]], ended.text, ended)
                    self.assertIn(str(run), ended.text, ended)
                if ended.code == 75 and (run / "outcome.json").exists():
                    self.assertEqual(json.loads((run / "outcome.json").read_text())["code"], 75)
                if run.exists() and checkpoints(run):
                    self.run_ok("verify", run)
                self.run_ok("train", *FLAGS, "--run", run, ranks=2)
                self.assert_same_result(run, self.undisturbed)
                # (A run that turns out to be finished is only read, so an earlier owner's folder may stay.)
                self.assertEqual(list(run.glob("writer-*/*.h5.tmp")), [], "temporary files stayed")
        print(f"codes: {dict(codes)}")


if __name__ == "__main__":
    LIBRARY = sys.argv.pop(1)
    POINTS = 8
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        POINTS = None
    elif "--points" in sys.argv:
        at = sys.argv.index("--points")
        POINTS = int(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    holdfast_run.main()
