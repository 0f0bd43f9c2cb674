#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ledger of a run that was stopped, killed and moved to other ranks: verify proves from it that no sample was lost or taken
twice, and finds what was changed; replay computes a step again and compares."""

import json
import re
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW, checkpoints, files_below, inspect  # noqa: E402

SAMPLES = 47
EPOCHS = 6
STEPS = 4 * EPOCHS
# Otherwise it depends on the speed of the disk which steps have a checkpoint.
ONLY_AT_THE_END = ("--save-every-epochs", 0)


def verified(run: Path) -> dict:
    ended = holdfast_run.run("verify", run, "--json")
    content = json.loads(ended.stdout)
    assert ended.code == (0 if content["good"] else 93), ended
    return content


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


class WithALedger(holdfast_run.TestCase):
    """A run of four launches, each with one checkpoint at its end: on 4 ranks to step 5, 2 to 6, 1 to 14, and 3 to the end."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_dir = cls.shared_folder / "run"
        cls.indices = cls.shared_folder / "indices.jsonl"
        for limit, ranks in ((5, 4), (6, 2), (14, 1), (-1, 3)):
            options = ("--max-steps", limit, *ONLY_AT_THE_END, "--keep", 100, "--digest-every", 2, "--log-indices", cls.indices)
            flags = [*NARROW, "--epochs", EPOCHS] if limit == 5 else []
            ended = holdfast_run.run("train", *flags, "--run", cls.run_dir, *options, ranks=ranks)
            assert ended.code == 0, ended

    def copy_of_run(self, name: str = "copy") -> Path:
        return Path(shutil.copytree(self.run_dir, self.folder / name))

    def assert_found(self, run: Path, *words: str) -> None:
        ended = holdfast_run.run("verify", run)
        self.assert_fails(ended, 93, "FOUND", *words)
        self.assertNotIn("Proved", ended.stdout)


class Verify(WithALedger):
    def test_proves_each_sample_of_each_epoch_once(self):
        before = files_below(self.run_dir)
        text = self.run_ok("verify", self.run_dir).stdout
        self.assertIn(f"Proved: from step 0 to {STEPS} every sample was consumed exactly once an epoch", text)
        content = verified(self.run_dir)
        self.assertEqual(files_below(self.run_dir), before, "verify changed something")
        self.assertEqual((content["findings"], content["notes"], content["ledger"]["torn"]), ([], [], []))
        self.assertEqual(content["ledger"]["discarded"], 0)
        self.assertEqual(content["ledger"]["digests"], STEPS // 2)
        self.assertEqual([row["epoch"] for row in content["epochs"]], list(range(EPOCHS)))
        for row in content["epochs"]:
            self.assertEqual((row["first_sample"], row["end_sample"], row["complete"]), (0, SAMPLES, True))
            self.assertIn(f"\n{row['epoch']:<8} {SAMPLES} ", text)
        self.assertEqual([row["launches"] for row in content["epochs"]], [[1], [1, 2, 3], [3], [3, 4], [4], [4]])
        self.assertEqual([row["ranks"] for row in content["epochs"]], [[4], [4, 2, 1], [1], [1, 3], [3], [3]])

    def test_the_ledger_tells_of_the_samples_that_were_read(self):
        taken = [Counter() for _ in range(EPOCHS)]
        by_step = Counter()
        for line in self.indices.read_text().splitlines():
            row = json.loads(line)
            taken[row["epoch"]].update(row["samples"])
            by_step[row["step"]] += len(row["samples"])
        for epoch in taken:
            self.assertEqual(epoch, Counter(range(SAMPLES)))
        for row in rows_of(self.run_dir):
            if row["kind"] != "digest":
                consumed = sum(by_step[step] for step in range(row["first_step"], row["end_step"]))
                end, first = ([row[f"{at}_epoch"], row[f"{at}_sample"]] for at in ("end", "first"))
                self.assertEqual((end[0] - first[0]) * SAMPLES + end[1] - first[1], consumed, row)

    def test_every_file_has_its_row(self):
        rows = {row["digest"]: row for row in rows_of(self.run_dir) if row["kind"] != "digest"}
        for step, path in checkpoints(self.run_dir).items():
            content = inspect(path)
            row = rows[content["file_digest"]]
            self.assertEqual((row["end_step"], row["parameters"]), (step, content["parameters_digest"]))
        self.assertEqual(list(checkpoints(self.run_dir)), [0, 5, 6, 14, STEPS])
        self.assertEqual(len(rows), 5)

    def test_every_removed_doubled_or_edited_row_is_found(self):
        run = self.copy_of_run()
        ledger = run / "ledger.jsonl"
        lines = ledger.read_text().splitlines(keepends=True)
        for at in (*range(0, len(lines) - 1, 4), len(lines) - 1):
            edited = re.sub(r'"ranks":\d+', '"ranks":7', lines[at])
            name = f"line {at + 1} "
            last = at + 1 == len(lines)
            for damage, changed, words in (
                ("removed", lines[:at] + lines[at + 1 :], ("removed", "the newest good checkpoint" if last else name)),
                ("doubled", lines[: at + 1] + lines[at:], ("doubled", f"line {at + 2} ", name)),
                ("edited", lines[:at] + [edited] + lines[at + 1 :], ("edited", name)),
            ):
                with self.subTest(f"line {at + 1} {damage}"):
                    ledger.write_text("".join(changed))
                    self.assert_found(run, str(ledger), *words)

    def test_no_ledger(self):
        run = self.copy_of_run()
        (run / "ledger.jsonl").unlink()
        self.assert_found(run, "the newest good checkpoint")
        # Another launch cannot repair that.
        self.run_ok("train", "--run", run, "--epochs", EPOCHS + 1, ranks=2)
        self.assert_found(run, "no row above it tells of its parent")

    def test_a_torn_last_row_is_survived(self):
        run = self.copy_of_run()
        ledger = run / "ledger.jsonl"
        with ledger.open("a") as file:
            file.write(ledger.read_text().splitlines()[-1][:100])
        content = verified(run)
        self.assertTrue(content["good"], content)
        self.assertEqual(len(content["ledger"]["torn"]), 1)
        self.run_ok("train", "--run", run, "--epochs", EPOCHS + 1, ranks=2)
        content = verified(run)
        self.assertTrue(content["good"], content)
        self.assertEqual(len(content["ledger"]["torn"]), 1)
        self.assertEqual(content["epochs"][-1]["end_sample"], SAMPLES)

    def test_metrics_csv(self):
        run = self.copy_of_run()
        path = run / "metrics.csv"
        text = path.read_text()
        path.write_text(text.replace(f",{SAMPLES},", f",{SAMPLES - 1},", 1))
        self.assert_found(run, str(path), "line 2")
        lines = text.splitlines(keepends=True)
        path.write_text("".join(lines[:-1]))
        self.assert_found(run, str(path), f"line {EPOCHS + 1}: ''")
        path.write_text(text + lines[-1].replace(str(EPOCHS - 1), str(EPOCHS), 1))
        self.assertIn("newer", self.run_ok("verify", run).stdout)
        path.write_text(text[:-5])
        self.assert_found(run, str(path))
        path.unlink()
        self.assert_found(run, str(path), "line 1: ''")

    def test_files_that_do_not_belong(self):
        run = self.copy_of_run()
        (run / "writer-000007").mkdir()
        temporary = run / "writer-000007" / "step-000000000099.h5.tmp"
        temporary.write_bytes(b"half a checkpoint")
        self.assertIn(f"temporary  {temporary}", self.run_ok("verify", run).stdout)
        self.assertEqual(verified(run)["temporary_files"], [str(temporary)])
        newest = checkpoints(run)[STEPS]
        damaged = newest.with_name(newest.name + ".bad")
        newest.rename(damaged)
        content = verified(run)
        self.assertTrue(content["good"], content)
        self.assertEqual([file["file"] for file in content["quarantined"]], [str(damaged)])
        self.assertGreater(content["ledger"]["discarded"], 0)
        # A good checkpoint of another run.
        other = self.folder / "other"
        self.run_ok("train", *NARROW, "--run", other, "--seed", 1, "--max-steps", 6, ranks=2)
        shutil.copy(checkpoints(other)[6], checkpoints(run)[6])
        self.assert_found(run, str(checkpoints(run)[6]), "no row tells of")


class VerifyAfterTrouble(holdfast_run.TestCase):
    def test_killed_and_gone_on_with_other_ranks(self):
        run = self.folder / "run"
        options = ("--save-every-steps", 3, "--digest-every", 1)
        launch = self.start("train", *NARROW, "--run", run, "--epochs", EPOCHS, *options, ranks=3)
        launch.signal_rank_in(run, 7, 1, signal.SIGKILL)
        self.assertNotEqual(launch.finish().code, 0)
        content = verified(run)
        self.assertTrue(content["good"], content)
        self.run_ok("train", "--run", run, *options, ranks=2)
        content = verified(run)
        self.assertTrue(content["good"], content)
        self.assertEqual([row["end_sample"] for row in content["epochs"]], [SAMPLES] * EPOCHS)
        self.assertEqual(content["epochs"][-1]["launches"], [2])
        self.assertEqual(content["epochs"][-1]["ranks"], [2])
        digests = {}
        for row in rows_of(run):
            digests.setdefault(row["end_step"], set()).add(row["parameters"])
        self.assertEqual({len(found) for found in digests.values()}, {1}, "a step had two results")
        self.assertEqual(len(digests), STEPS + 1)

    def test_damaged_newest_and_computed_again(self):
        run = self.folder / "run"
        self.run_ok("train", *NARROW, "--run", run, "--epochs", 2, *ONLY_AT_THE_END, ranks=2)
        self.run_ok("train", "--run", run, "--epochs", 3, *ONLY_AT_THE_END)
        newest = checkpoints(run)[12]
        newest.write_bytes(newest.read_bytes()[:-1])
        ended = holdfast_run.run("verify", run)
        self.assert_fails(ended, 93, f"BAD  {newest}", "newer")
        self.assertNotIn("Proved", ended.stdout)
        self.assertFalse(verified(run)["good"])
        self.run_ok("train", "--run", run, "--epochs", 3, *ONLY_AT_THE_END, ranks=3)
        content = verified(run)
        self.assertTrue(content["good"], content)
        self.assertEqual(content["ledger"]["discarded"], 1)
        self.assertEqual([row["launches"] for row in content["epochs"]], [[1], [1], [3]])

    def test_resumed_from_a_file(self):
        source, run = self.folder / "source", self.folder / "run"
        self.run_ok("train", *NARROW, "--run", source, "--max-steps", 6, "--epochs", 3, ranks=2)
        file = checkpoints(source)[6]
        self.run_ok("train", "--run", run, "--resume", file, "--max-steps", -1, ranks=3)
        content = verified(run)
        self.assertTrue(content["good"], content)
        self.assertEqual(content["ledger"]["imported_from"], str(file))
        self.assertEqual(content["epochs"][0] | {"launches": 0, "ranks": 0},
                         {"epoch": 1, "first_sample": 30, "end_sample": SAMPLES, "complete": False, "launches": 0, "ranks": 0})
        self.assertIn(f"where the run began with {file}", self.run_ok("verify", run).stdout)

    def test_init_from_tail_pad_and_the_beginning(self):
        source, run = self.folder / "source", self.folder / "run"
        self.run_ok("train", *NARROW, "--run", source, "--max-steps", 0)
        self.assertEqual(verified(source)["epochs"], [])
        self.run_ok("train", *NARROW, "--run", run, "--init-from", checkpoints(source)[0], "--tail", "pad", "--max-steps", 2, ranks=2)
        self.assertIn("0 to 30 of ?", self.run_ok("verify", run).stdout)
        self.run_ok("train", "--run", run, "--max-steps", 5, ranks=3)
        content = verified(run)
        self.assertTrue(content["good"], content)
        self.assertEqual([row["end_sample"] for row in content["epochs"]], [50, 15])  # 47 and 3 of them again for 5 replicas
        self.assertIn("exactly once an epoch (but those that --tail pad repeats)", self.run_ok("verify", run).stdout)


class Replay(WithALedger):
    def test_the_same_on_any_number_of_ranks(self):
        before = files_below(self.run_dir)
        recorded = {row["end_step"]: row["parameters"] for row in rows_of(self.run_dir)}
        for ranks, step, first_step in ((1, 8, 6), (2, 8, 6), (3, 8, 6), (1, 14, 6), (2, 5, 0), (3, 24, 14)):
            with self.subTest(f"step {step} on {ranks} ranks"):
                ended = self.run_ok("replay", self.run_dir, "--step", step, ranks=ranks, cwd=self.folder)
                self.assertIn(f"Replaying steps {first_step + 1} to {step} from ", ended.stdout)
                lines = re.findall(rf"(?m)^step {step}: same .*", ended.stdout)
                self.assertTrue(lines, ended)
                for line in lines:
                    self.assertEqual(line.count(recorded[step]), 2, line)
                    self.assertIn(f"({ranks} ranks on ", line)
        self.assertEqual(files_below(self.run_dir), before, "replay changed something")
        self.assertEqual(list(self.folder.iterdir()), [], "replay wrote something")

    def test_an_edited_digest(self):
        run = self.copy_of_run()
        ledger = run / "ledger.jsonl"
        text = ledger.read_text()
        row = next(line for line in text.splitlines() if '"kind":"digest"' in line and '"end_step":8,' in line)
        digest = json.loads(row)["parameters"]
        other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
        ledger.write_text(text.replace(row, row.replace(digest, other)))
        before = files_below(run)
        ended = holdfast_run.run("replay", run, "--step", 8, ranks=2)
        self.assert_fails(ended, 93, f"line {text[: text.index(row)].count(chr(10)) + 1}", "step 8", "edited")
        self.assertEqual(files_below(run), before)

    def test_other_bits_than_recorded(self):
        # The checkpoint of a run with another seed, under the name of ours.
        run, other = self.copy_of_run(), self.folder / "other"
        self.run_ok("train", *NARROW, "--run", other, "--seed", 1, "--max-steps", 6, ranks=2)
        shutil.copy(checkpoints(other)[6], checkpoints(run)[6])
        before = files_below(run)
        recorded = [row for row in rows_of(run) if row["end_step"] == 8][0]
        ended = holdfast_run.run("replay", run, "--step", 8, ranks=2)
        self.assert_fails(ended, 93, "step 8: DIFFERS", recorded["parameters"], *recorded["hosts"], "launch 3")
        self.assertNotIn("MPI_ABORT", ended.text)
        self.assertEqual(files_below(run), before)

    def test_a_damaged_checkpoint_is_passed_over(self):
        run = self.copy_of_run()
        checkpoints(run)[6].write_bytes(b"no checkpoint")
        before = files_below(run)
        ended = self.run_ok("replay", run, "--step", 8, ranks=2)
        self.assertIn("skipped a checkpoint", ended.stderr)
        self.assertIn("Replaying steps 6 to 8 from", ended.stdout)
        self.assertEqual(files_below(run), before)

    def test_helpful_errors(self):
        before = files_below(self.run_dir)
        for step in (7, STEPS + 2):
            ended = holdfast_run.run("replay", self.run_dir, "--step", step, ranks=2)
            self.assert_fails(ended, 93, f"no digest of step {step} was recorded", ", 5, 6, 8, 10, 12,", "--digest-every")
        ended = holdfast_run.run("replay", self.run_dir, "--step", 8, ranks=6)
        self.assert_fails(ended, 93, "6 ranks for 5 replicas", "at most 5 ranks")
        for step in (0, -1, "last"):
            self.assert_fails(holdfast_run.run("replay", self.run_dir, "--step", step), 2, "--step")
        self.assert_fails(holdfast_run.run("replay", self.run_dir), 2, "--step")
        self.assert_fails(holdfast_run.run("replay", checkpoints(self.run_dir)[6], "--step", 8), 93, "give a run directory")
        missing = self.folder / "missing"
        self.assert_fails(holdfast_run.run("replay", missing, "--step", 8), 93, str(missing), "does not exist")
        self.assert_fails(holdfast_run.run("replay", self.folder, "--step", 8), 93, "tells of no step", "--digest-every")
        ended = holdfast_run.run("replay", self.run_dir, "--step", 8, "--data", "synthetic:48", ranks=2)
        self.assert_fails(ended, 93, "synthetic:48", "is not the run's")
        self.assertEqual(files_below(self.run_dir), before)

    def test_no_checkpoint_before_the_step(self):
        run = self.copy_of_run()
        for step, path in checkpoints(run).items():
            if step < 12:
                path.unlink()
        ended = holdfast_run.run("replay", run, "--step", 8, ranks=2)
        self.assert_fails(ended, 93, "keeps no good checkpoint of a step from 0 to 7", "it keeps steps 14, 24", "--keep")
        # What it offers instead can be replayed: 12 has a digest, but no checkpoint before it.
        ended = holdfast_run.run("replay", run, "--step", 15, ranks=2)
        self.assert_fails(ended, 93, "no digest of step 15 was recorded", "choose one of 16, ")

    def test_a_run_that_began_with_a_file(self):
        run = self.folder / "run"
        self.run_ok("train", "--run", run, "--resume", checkpoints(self.run_dir)[6], "--max-steps", 9, *ONLY_AT_THE_END, "--digest-every", 1, ranks=2)
        self.assertIn("Replaying steps 7 to 8", self.run_ok("replay", run, "--step", 8).stdout)
        self.assert_fails(holdfast_run.run("replay", run, "--step", 6), 93, "no digest of step 6")


if __name__ == "__main__":
    holdfast_run.main()
