#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped, killed and started again on any number of ranks ends with the bytes of an undisturbed one."""

import re
import shutil
import signal
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW, NARROW_STEPS_PER_EPOCH, checkpoints, epoch_lines, inspect  # noqa: E402

EPOCHS = 6


class ResumeTest(holdfast_run.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = cls.shared_folder / "undisturbed"
        cls.undisturbed_end = holdfast_run.train_with_checkpoints(
            cls.undisturbed, {NARROW_STEPS_PER_EPOCH, 8}, *NARROW, "--epochs", EPOCHS, ranks=2
        )

    def test_on_4_then_1_then_3_ranks_stopped_inside_epochs(self):
        run = self.folder / "run"
        first = self.run_ok("train", *NARROW, "--run", run, "--epochs", EPOCHS, "--max-steps", 5, ranks=4)
        self.assertEqual(inspect(run)["step"], 5)
        second = self.run_ok("train", "--run", run, "--max-steps", 14, ranks=1)
        self.assertIn("Resuming training from snapshot at Epoch 1 step 1 of 4", second.stdout)
        self.assertEqual(inspect(run)["step"], 14)
        third = self.run_ok("train", "--run", run, "--max-steps", -1, ranks=3)
        self.assertIn("Resuming training from snapshot at Epoch 3 step 2 of 4", third.stdout)
        self.assert_same_result(run, self.undisturbed)
        lines = epoch_lines(first) + epoch_lines(second) + epoch_lines(third)
        self.assertEqual(lines, epoch_lines(self.undisturbed_end))

    def test_six_epochs_are_three_and_three(self):
        run = self.folder / "run"
        first = self.run_ok("train", *NARROW, "--run", run, "--epochs", 3, ranks=2)
        self.assertEqual(inspect(run)["epoch"], 3)
        second = self.run_ok("train", "--run", run, "--epochs", EPOCHS, ranks=2)
        self.assertRegex(second.stdout, r"(?m)^\[CPU0\] Resuming training from snapshot at Epoch 3$")
        self.assert_same_result(run, self.undisturbed)
        self.assertEqual(epoch_lines(first) + epoch_lines(second), epoch_lines(self.undisturbed_end))

    def test_epoch_and_rate_of_the_log_lines(self):
        # The rate after the scheduler's step, as in the tutorial, multiplied decay by decay, as torch does.
        lines = epoch_lines(self.undisturbed_end)
        found = [re.search(r"Epoch +(\d+) \| Batchsize: 3 \| Steps: 4 \| LR: (\S+) ", line).groups() for line in lines]
        rates = [0.05]
        for epoch in range(1, EPOCHS):
            rates.append(rates[-1] * (0.1 if (epoch + 1) % 2 == 0 else 1.0))
        self.assertEqual([int(epoch) for epoch, _ in found], list(range(EPOCHS)))
        self.assertEqual([rate for _, rate in found], [f"{rate:.4f}" for rate in rates])
        csv = [line.split(",") for line in (self.undisturbed / "metrics.csv").read_text().splitlines()]
        self.assertEqual([float(row[2]) for row in csv[1:]], rates)
        self.assertRegex(self.undisturbed_end.stdout, r"(?m)^\[CPU0\] Test Acc: \d+\.\d{4}%$")

    def test_any_number_of_ranks_gives_the_same_bytes(self):
        digests = {}
        for ranks in range(1, 6):
            run = self.folder / f"ranks-{ranks}"
            self.run_ok("train", *NARROW, "--run", run, "--epochs", 1, ranks=ranks)
            digests[ranks] = (inspect(run)["state_digest"], (run / "metrics.csv").read_bytes())
        self.assertEqual(len(set(digests.values())), 1, digests)
        wanted = inspect(checkpoints(self.undisturbed)[NARROW_STEPS_PER_EPOCH])
        self.assertEqual(digests[1][0], wanted["state_digest"])

    def test_without_mpirun(self):
        run = self.folder / "run"
        self.run_ok("train", *NARROW, "--run", run, "--epochs", EPOCHS)
        self.assert_same_result(run, self.undisturbed)

    def test_another_seed_gives_other_bytes(self):
        run = self.folder / "run"
        self.run_ok("train", *NARROW, "--run", run, "--epochs", 1, "--seed", 1, ranks=2)
        wanted = inspect(checkpoints(self.undisturbed)[NARROW_STEPS_PER_EPOCH])
        for digest in ("parameters_digest", "state_digest"):
            self.assertNotEqual(inspect(run)[digest], wanted[digest])

    def test_resnet34_at_full_width(self):
        digests = {}
        for ranks in (1, 2):
            run = self.folder / f"ranks-{ranks}"
            self.run_ok(
                *"train --data synthetic:64 --limit-test 4 --model resnet34 --replicas 2 --batch-size 4 --threads 1".split(),
                *"--max-steps 2 --epochs 1 --eval-batch-size 4 --run".split(),
                run,
                ranks=ranks,
            )
            content = inspect(run)
            self.assertEqual((content["step"], content["num_parameters"]), (2, 21_282_122))
            digests[ranks] = content["state_digest"]
        self.assertEqual(digests[1], digests[2])

    def test_killed_rank_and_start_on_another_number_of_ranks(self):
        run = self.folder / "run"
        for _ in range(20):  # until a checkpoint is on the disk, and not yet the last one
            launch = self.start("train", *NARROW, "--run", run, "--epochs", EPOCHS, "--save-every-steps", 3, ranks=3)
            launch.signal_rank_in(run, 7, 1, signal.SIGKILL)
            ended = launch.finish()
            self.assertEqual(launch.left_over(), {}, ended)
            step = max(checkpoints(run))
            if 0 < step < EPOCHS * NARROW_STEPS_PER_EPOCH:
                break
            shutil.rmtree(run)
        self.assertTrue(0 < step < EPOCHS * NARROW_STEPS_PER_EPOCH, f"killed too early or too late to test anything: step {step}")
        self.assertNotEqual(ended.code, 0, ended)
        again = self.run_ok("train", "--run", run, "--save-every-steps", 3, ranks=2)
        self.assertIn("Resuming training from snapshot", again.stdout)
        self.assert_same_result(run, self.undisturbed)

    def test_from_a_file_into_a_new_run_directory(self):
        run = self.folder / "run"
        source = checkpoints(self.undisturbed)[8]
        ended = self.run_ok("train", "--run", run, "--resume", source, "--keep", 100, ranks=3)
        self.assertIn("Resuming training from snapshot at Epoch 2", ended.stdout)
        self.assertEqual(min(checkpoints(run)), 8, "the run begins where the file is")
        self.assert_same_result(run, self.undisturbed)

    def test_from_what_is_no_file(self):
        run = self.folder / "run"
        missing = self.folder / "missing.h5"
        self.assert_fails(holdfast_run.run("train", "--run", run, "--resume", missing), 93, str(missing), "check the path")
        ended = holdfast_run.run("train", "--run", run, "--resume", self.undisturbed)
        self.assert_fails(ended, 93, f"--resume {self.undisturbed} is a folder", f"{self.undisturbed}/checkpoints")

    def test_from_a_file_older_than_the_run_is_refused(self):
        before = holdfast_run.result_below(self.undisturbed)
        source = checkpoints(self.undisturbed)[8]
        ended = holdfast_run.run("train", "--run", self.undisturbed, "--resume", source, ranks=2)
        self.assert_fails(ended, 93, str(source), "step 8", "step 24", "--run")
        self.assertEqual(holdfast_run.result_below(self.undisturbed), before)

    def test_resume_never_leaves_an_existing_run_alone(self):
        before = holdfast_run.result_below(self.undisturbed)
        ended = holdfast_run.run("train", *NARROW, "--run", self.undisturbed, "--resume", "never", ranks=2)
        self.assert_fails(ended, 93, "--resume never", str(self.undisturbed), "step 24")
        self.assertEqual(holdfast_run.result_below(self.undisturbed), before)
        run = self.folder / "new"
        self.run_ok("train", *NARROW, "--run", run, "--resume", "never", "--epochs", 1)

    def test_finished_run_started_again_changes_nothing(self):
        before = holdfast_run.result_below(self.undisturbed)
        ended = self.run_ok("train", *NARROW, "--run", self.undisturbed, "--epochs", EPOCHS, ranks=2)
        self.assertRegex(ended.stdout, "The run in .* is finished: 24 of 24 steps done")
        accuracy = re.search(r"Test Acc: \S+", self.undisturbed_end.stdout)[0]
        self.assertIn(accuracy, ended.stdout)
        self.assertEqual(holdfast_run.result_below(self.undisturbed), before)

    def test_limit_below_what_is_done(self):
        before = holdfast_run.result_below(self.undisturbed)
        ended = self.run_ok("train", "--run", self.undisturbed, "--max-steps", 16, ranks=2)
        self.assertIn("finished: 24 steps are done, more than the 16 now asked for", ended.stdout)
        self.assertNotIn("24 of 16", ended.text)
        self.assertEqual(holdfast_run.result_below(self.undisturbed), before)

    def test_another_platform_is_refused_unless_allowed(self):
        run = self.folder / "run"
        self.run_ok("train", *NARROW, "--run", run, "--epochs", 1, ranks=2)
        before = holdfast_run.result_below(run)
        elsewhere = {"ATEN_CPU_CAPABILITY": "default"}  # LibTorch's own variable: without vector instructions
        arguments = ("train", "--run", run, "--epochs", 2)
        capability = inspect(run)["fingerprint"]["cpu_capability"]
        ended = holdfast_run.run(*arguments, ranks=2, env=elsewhere)
        if capability == "DEFAULT":
            self.skipTest("this CPU has no vector instructions that could be left away")
        self.assert_fails(ended, 93, "computes other bits than the run's", capability, "DEFAULT", "--allow-platform-change")
        self.assertEqual(holdfast_run.result_below(run), before)
        ended = self.run_ok(*arguments, "--allow-platform-change", ranks=2, env=elsewhere)
        self.assertIn("warning: another numeric platform: the run is bit-exact until step 4 only", ended.stderr)
        self.assertEqual(inspect(run)["fingerprint"]["exact_until_step"], 4)
        # Back again it is a change too, but exact is only what was before the first.
        self.run_ok("train", "--run", run, "--epochs", 3, "--allow-platform-change", ranks=2)
        self.assertEqual(inspect(run)["fingerprint"]["exact_until_step"], 4)

    def test_max_steps_0_saves_and_evaluates_and_can_be_raised(self):
        run = self.folder / "run"
        ended = self.run_ok("train", *NARROW, "--run", run, "--epochs", EPOCHS, "--max-steps", 0, ranks=2)
        self.assertEqual(list(checkpoints(run)), [0])
        self.assertIn("Test Acc", ended.stdout)
        self.assertEqual(epoch_lines(ended), [])
        self.run_ok("train", "--run", run, "--max-steps", 24, ranks=2)
        self.assert_same_result(run, self.undisturbed)


if __name__ == "__main__":
    holdfast_run.main()
