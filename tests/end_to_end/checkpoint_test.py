#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints seen from outside: damaged ones are skipped or refused, and verify, inspect, eval and --init-from read them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW, checkpoints, files_below, inspect  # noqa: E402

LAST_STEP = 12  # of 3 epochs


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def flip_one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


class WithARun(holdfast_run.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_dir = cls.shared_folder / "run"
        holdfast_run.train_with_checkpoints(cls.run_dir, {4, 8, LAST_STEP}, *NARROW, "--epochs", 3, ranks=2)

    def copy_of_run(self, name: str = "copy") -> Path:
        return Path(shutil.copytree(self.run_dir, self.folder / name))


class DamagedCheckpoints(WithARun):
    def test_newest_damaged_is_warned_of_and_the_older_used(self):
        for damage in (truncate, flip_one_bit, empty):
            with self.subTest(damage.__name__):
                run = self.copy_of_run(damage.__name__)
                newest = checkpoints(run)[LAST_STEP]
                damage(newest)
                ended = self.run_ok("train", "--run", run, ranks=3)
                self.assertIn("warning: skipped a checkpoint", ended.stderr)
                self.assertIn(newest.name, ended.stderr)
                self.assertIn("Resuming training from snapshot at Epoch 2", ended.stdout)
                self.assertTrue(newest.with_name(newest.name + ".bad").exists(), "the damaged file is kept for people to look at")
                self.assertRegex(self.run_ok("verify", run).stdout, rf"set aside  \S*{newest.name}.bad  \S*: (damaged|not a complete)")
                self.assert_same_result(run, self.run_dir)

    def test_two_newest_damaged(self):
        run = self.copy_of_run()
        flip_one_bit(checkpoints(run)[LAST_STEP])
        truncate(checkpoints(run)[8])
        ended = self.run_ok("train", "--run", run, ranks=2)
        self.assertIn("Resuming training from snapshot at Epoch 1", ended.stdout)
        self.assert_same_result(run, self.run_dir)

    def test_none_good_is_never_a_fresh_start(self):
        run = self.copy_of_run()
        for path in checkpoints(run).values():
            flip_one_bit(path)
        before = files_below(run / "checkpoints")
        ended = holdfast_run.run("train", *NARROW, "--run", run, ranks=2)
        self.assert_fails(ended, 93, str(run / "checkpoints"), "none of the 4 checkpoints verifies")
        self.assertEqual(files_below(run / "checkpoints"), before)

    def test_resume_from_a_bad_file_fails_and_creates_nothing(self):
        text = self.folder / "text.h5"
        text.write_text("not a checkpoint\n" * 100)
        damaged = {}
        for damage in (truncate, flip_one_bit, empty):
            damaged[damage.__name__] = Path(shutil.copy(checkpoints(self.run_dir)[8], self.folder / f"{damage.__name__}.h5"))
            damage(damaged[damage.__name__])
        files = damaged | {"text": text, "missing": self.folder / "missing.h5", "folder": self.folder}
        for name, path in files.items():
            with self.subTest(name):
                run = self.folder / "new"
                ended = holdfast_run.run("train", *NARROW, "--run", run, "--resume", path, ranks=2)
                self.assert_fails(ended, 93, str(path))
                self.assertFalse(run.exists(), "a run directory was made")

    def test_verify_names_the_damaged_ones(self):
        run = self.copy_of_run()
        truncate(checkpoints(run)[8])
        before = files_below(run)
        ended = holdfast_run.run("verify", run)
        self.assertEqual(ended.code, 93, ended)
        lines = {line.split()[1]: line.split()[0] for line in ended.stdout.splitlines() if line.startswith(("good", "BAD"))}
        wanted = {str(path): "BAD" if step == 8 else "good" for step, path in checkpoints(run).items()}
        self.assertEqual(lines, wanted)
        rows = json.loads(holdfast_run.run("verify", run, "--json").stdout)["checkpoints"]
        self.assertEqual({row["file"]: "good" if row["good"] else "BAD" for row in rows}, wanted)
        self.assertEqual(holdfast_run.run("verify", checkpoints(run)[8]).code, 93)
        self.assertFalse(json.loads(holdfast_run.run("verify", checkpoints(run)[8], "--json").stdout)["good"])
        self.run_ok("verify", checkpoints(run)[4])
        self.assertEqual(files_below(run), before, "verify changed something")

    def test_verify_and_inspect_without_checkpoints(self):
        for command in ("verify", "inspect", "eval"):
            for path in (self.folder, self.folder / "missing"):
                with self.subTest(f"{command} {path}"):
                    self.assert_fails(holdfast_run.run(command, path), 93, str(path))
        self.assertEqual(list(self.folder.iterdir()), [])


class GoodCheckpoints(WithARun):
    def test_verify_and_inspect_of_a_good_run(self):
        before = files_below(self.run_dir)
        self.assertEqual(self.run_ok("verify", self.run_dir).stdout.count("good "), 4)
        content = inspect(self.run_dir)
        self.assertEqual(content, inspect(checkpoints(self.run_dir)[LAST_STEP]))
        wanted = {"epoch": 3, "step": 12, "steps_per_epoch": 4, "replicas": 5, "batch_size": 3, "seed": 0}
        self.assertEqual({key: content[key] for key in wanted}, wanted)
        self.assertEqual(content["settings"]["lr"], 0.05)
        self.assertEqual(content["settings"]["data"], "synthetic:47")
        for key in ("parameters_digest", "state_digest"):
            self.assertRegex(content[key], "^[0-9a-f]{32}$")
        shapes = {parameter["name"]: parameter["shape"] for parameter in content["parameters"]}
        self.assertEqual(shapes["conv1.weight"], [4, 3, 3, 3])
        self.assertEqual(shapes["layer2.0.downsample.0.weight"], [8, 4, 1, 1])
        text = self.run_ok("inspect", self.run_dir).stdout
        for words in (content["state_digest"], content["parameters_digest"], "layer2.0.downsample.0.weight", "synthetic:47"):
            self.assertIn(words, text)
        self.assertEqual(files_below(self.run_dir), before, "verify or inspect changed something")

    def test_json_of_names_that_are_not_utf8(self):
        odd = self.folder / os.fsdecode(b"odd \xff run")
        shutil.copytree(self.run_dir, odd)
        for command in ("verify", "inspect", "eval"):
            content = json.loads(self.run_ok(command, odd, "--json").stdout)
            self.assertIn("odd \ufffd run", json.dumps(content, ensure_ascii=False), command)

    def test_step_0_is_saved_before_the_first_step_whoever_starts(self):
        first = inspect(checkpoints(self.run_dir)[0])
        self.assertEqual((first["epoch"], first["step"]), (0, 0))
        self.assertNotEqual(first["parameters_digest"], inspect(self.run_dir)["parameters_digest"])
        run = self.folder / "run"
        self.run_ok("train", *NARROW, "--run", run, "--max-steps", 0)
        self.assertEqual(inspect(run)["state_digest"], first["state_digest"])

    def test_keep(self):
        run = self.folder / "run"
        self.run_ok("train", *NARROW, "--run", run, "--epochs", 1, "--save-every-steps", 1, "--keep", 2, ranks=2)
        kept = list(checkpoints(run))  # the one before the last may have been delayed past a step
        self.assertEqual((len(kept), kept[-1]), (2, 4), kept)
        self.assert_fails(holdfast_run.run("train", *NARROW, "--run", self.folder / "other", "--keep", 1), 2, "--keep")
        self.assertFalse((self.folder / "other").exists())

    def test_save_every_steps_and_epochs(self):
        run = self.folder / "run"
        self.run_ok("train", *NARROW, "--run", run, "--epochs", 2, "--save-every-steps", 3, "--keep", 100, ranks=2)
        # A checkpoint that is due while the one before it is being written comes a step or more later.
        saved = list(checkpoints(run))
        self.assertEqual((saved[0], saved[-1]), (0, 8))
        self.assertTrue(any(3 <= step < 8 for step in saved), saved)
        self.assertEqual(inspect(run)["state_digest"], inspect(checkpoints(self.run_dir)[8])["state_digest"])
        run = self.folder / "end-only"
        options = ("--save-every-epochs", 0, "--keep", 100)
        self.run_ok("train", *NARROW, "--run", run, "--epochs", 2, *options, ranks=2)
        self.assertEqual(list(checkpoints(run)), [0, 8])

    def test_eval_on_any_number_of_ranks_equals_the_run(self):
        before = files_below(self.run_dir)
        ended = [self.run_ok("eval", self.run_dir, "--json", ranks=ranks).stdout for ranks in (1, 2, 3)]
        self.assertEqual(ended[0], ended[1])
        self.assertEqual(ended[0], ended[2])
        last_row = (self.run_dir / "metrics.csv").read_text().splitlines()[-1].split(",")
        content = json.loads(ended[0])
        self.assertEqual((content["step"], content["test_count"]), (LAST_STEP, 9))
        self.assertEqual(content["test_loss"], float(last_row[6]))
        self.assertEqual(content["test_correct"], int(last_row[8]))
        self.assertIn("Test Acc", self.run_ok("eval", checkpoints(self.run_dir)[4], ranks=2).stdout)
        self.assertEqual(files_below(self.run_dir), before, "eval changed something")

    def test_metrics_csv_holds_each_epoch_once(self):
        rows = [line.split(",") for line in (self.run_dir / "metrics.csv").read_text().splitlines()]
        self.assertEqual(rows[0][:5], ["epoch", "step", "lr", "loss", "train_count"])
        self.assertEqual([(row[0], row[1], row[4]) for row in rows[1:]], [("0", "4", "47"), ("1", "8", "47"), ("2", "12", "47")])

    def test_init_from_a_checkpoint(self):
        source = checkpoints(self.run_dir)[LAST_STEP]
        run = self.folder / "run"
        options = ("--init-from", source, "--epochs", 1)
        self.run_ok("train", *NARROW, "--run", run, *options, ranks=3)
        first, wanted = inspect(checkpoints(run)[0]), inspect(source)
        self.assertEqual(first["parameters_digest"], wanted["parameters_digest"])
        self.assertEqual((first["epoch"], first["step"]), (0, 0))
        self.assertNotEqual(first["state_digest"], wanted["state_digest"])
        self.assertNotEqual(inspect(run)["parameters_digest"], wanted["parameters_digest"])
        again = self.run_ok("train", "--run", run, "--epochs", 2, ranks=2)
        self.assertIn("Resuming training from snapshot at Epoch 1", again.stdout)

    def test_init_from_what_does_not_fit(self):
        run = self.folder / "run"
        source = checkpoints(self.run_dir)[LAST_STEP]
        wider = holdfast_run.run("train", *holdfast_run.narrow(width=8), "--run", run, "--init-from", source, ranks=2)
        self.assert_fails(wider, 93, str(source), "conv1.weight")
        missing = holdfast_run.run("train", *NARROW, "--run", run, "--init-from", self.folder / "missing.h5", ranks=2)
        self.assert_fails(missing, 93, "missing.h5")
        self.assertFalse(run.exists(), "a run directory was made")
        run = self.copy_of_run()
        other = holdfast_run.run("train", "--run", run, "--epochs", 4, "--init-from", checkpoints(run)[4], ranks=2)
        self.assert_fails(other, 93, "--init-from")


class InitFromPython(WithARun):
    """Weights that python/holdfast_io.py wrote: plain HDF5 without a trailer. Needs an interpreter with h5py."""

    def write_weights(self, target: Path, change: str = "") -> None:
        """Those of the run's last checkpoint, after the Python statements `change` on the dict of arrays `state`."""
        python = [holdfast_run.python_with_h5py, "-B"]
        has_h5py = subprocess.run([*python, "-c", "import h5py, numpy"], capture_output=True, text=True)
        if has_h5py.returncode != 0:
            self.skipTest(f"{python[0]} has no h5py and numpy: {has_h5py.stderr.splitlines()[-1]}")
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); import holdfast_io; state = holdfast_io.load_state_dict(sys.argv[2]);"
            f"{change};holdfast_io.save_checkpoint_from_state_dict(state, sys.argv[3])"
        ).replace(";;", ";")
        folder = Path(__file__).resolve().parents[2] / "python"
        subprocess.run([*python, "-c", program, folder, checkpoints(self.run_dir)[LAST_STEP], target], check=True)

    def test_init_from_plain_hdf5(self):
        source, weights, run = checkpoints(self.run_dir)[LAST_STEP], self.folder / "weights.h5", self.folder / "run"
        self.write_weights(weights)
        self.run_ok("train", *NARROW, "--run", run, "--init-from", weights, "--max-steps", 0, ranks=2)
        self.assertEqual(inspect(run)["parameters_digest"], inspect(source)["parameters_digest"])
        from_checkpoint = self.folder / "from-checkpoint"
        self.run_ok("train", *NARROW, "--run", from_checkpoint, "--init-from", source, "--max-steps", 0)
        self.assertEqual(inspect(run)["state_digest"], inspect(from_checkpoint)["state_digest"])
        self.assert_fails(holdfast_run.run("verify", weights), 93, str(weights))

    def test_init_from_weights_that_are_not_finite(self):
        weights, run = self.folder / "weights.h5", self.folder / "run"
        for name, value in (("layer4.0.conv1.weight", "nan"), ("bn1.running_var", "inf")):
            with self.subTest(f"{name} {value}"):
                self.write_weights(weights, f"state['{name}'].reshape(-1)[-1] = float('{value}')")
                ended = holdfast_run.run("train", *NARROW, "--run", run, "--init-from", weights, ranks=2)
                self.assert_fails(ended, 93, f"--init-from {weights}", "NaN or infinite")
                self.assertFalse(run.exists(), "a run directory was made")


if __name__ == "__main__":
    holdfast_run.main()
