#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line: help, versions, where a value comes from, what is refused, and the commands that train nothing."""

import json
import os
import re
import sys
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import holdfast_run  # noqa: E402
from holdfast_run import NARROW, files_below, inspect, narrow  # noqa: E402

COMMANDS = ("train", "supervise", "eval", "inspect", "verify", "replay", "pack", "info", "bench")


class Help(holdfast_run.TestCase):
    def test_help_of_every_command(self):
        overview = self.run_ok("--help").stdout
        for command in COMMANDS:
            self.assertRegex(overview, rf"(?m)^ +{command} ")
            text = self.run_ok(command, "--help", cwd=self.folder).stdout
            self.assertIn(f"Usage: holdfast {command}", text)
            self.assertEqual("--config" in text, command != "supervise")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_help_and_version_of_a_launch_are_printed_once(self):
        ended = self.run_ok("train", "--help", ranks=2)
        self.assertEqual(ended.stdout.count("Usage: holdfast train"), 1, ended)
        ended = self.run_ok("--version", ranks=2)
        self.assertRegex(ended.stdout, r"\Aholdfast \d+\.\d+\.\d+\n\Z")

    def test_version(self):
        self.assertRegex(self.run_ok("--version").stdout, r"\Aholdfast \d+\.\d+\.\d+\n\Z")

    def test_info(self):
        content = json.loads(self.run_ok("info", "--json").stdout)
        self.assertEqual(self.run_ok("--version").stdout, f"holdfast {content['holdfast']}\n")
        for key in ("libtorch", "cpu_capability", "mpi", "hdf5", "nccl_built", "nccl_loaded", "cores_usable", "fingerprint"):
            self.assertIn(key, content)
        for key, name in (("program", "holdfast"), ("libtorch_file", "libtorch_cpu.so"), ("sample", "cifar10-sample.h5")):
            self.assertEqual(Path(content[key]).name, name)
            self.assertTrue(Path(content[key]).is_file(), content[key])
        text = self.run_ok("info").stdout
        for value in (content["libtorch"], content["mpi"], content["hdf5"], content["fingerprint"]["gradient_digest"]):
            self.assertIn(value, text)


class UsageErrors(holdfast_run.TestCase):
    def assert_refused_once(self, arguments: list, *words: str, env: dict = {}) -> None:
        ended = holdfast_run.run(*arguments, ranks=2, env=env, cwd=self.folder)
        self.assert_fails(ended, 2, *words)
        self.assertEqual(len(re.findall("(?m)^.*error: ", ended.stderr)), 1, f"one message expected: {ended}")
        self.assertNotIn("MPI_ABORT", ended.text, "a usage error needs no MPI")

    def test_unknown_flag_and_command(self):
        self.assert_refused_once(["train", "--nonsense", 1], "--nonsense", "--help")
        self.assert_refused_once(["nonsense"], "nonsense")
        self.assert_refused_once([], "subcommand", "--help")
        self.assert_refused_once(["verify"], "path")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_bad_values(self):
        table = {
            "batch-size": [0, -3, "many", 1.5],
            "replicas": [-1],
            "threads": [-1],
            "epochs": [-1],
            "max-steps": [-2],
            "seed": [-1, 2**32],
            "lr": [-0.1, "nan", "inf", "fast"],
            "momentum": [-1],
            "lr-step-size": [0],
            "model": ["resnet50"],
            "width": [0],
            "tail": ["short"],
            "reduction": ["quick"],
            "precision": ["fp16"],
            "device": ["tpu"],
            "limit-train": [-1],
            "eval-batch-size": [0],
            "progress": ["loud"],
        }
        for flag, values in table.items():
            for value in values:
                with self.subTest(f"--{flag} {value}"):
                    ended = holdfast_run.run("train", f"--{flag}={value}", cwd=self.folder)
                    self.assert_fails(ended, 2, f"--{flag}")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_what_is_wrong_with_a_number(self):
        table = {
            "--keep 1": "at least 2",
            "--keep 1000001": "at most 1000000",
            "--save-every-epochs -1": "at least 0",
            "--save-every-steps x": "a whole number",
            "--save-every-steps 1.5": "a whole number",
            "--save-every-minutes -1": "at least 0",
            "--save-every-minutes nan": "a number of at least 0",
            "--stop-after-minutes nan": "a number of at least 0",
            "--stop-after-minutes inf": "a number of at least 0",
            "--digest-every -1": "at least 0",
            "--check-replicas-every -1": "at least 0",
            "--no-progress-limit -1": "at least 0",
            "--watchdog-seconds 1.5": "a whole number",
        }
        for words, wanted in table.items():
            with self.subTest(words):
                flag, value = words.split()
                ended = holdfast_run.run("train", flag, value, "--dry-run", cwd=self.folder)
                self.assert_fails(ended, 2, f"error: {flag} is {value}, must be {wanted}\n")
        variable = {"HOLDFAST_SAVE_EVERY_STEPS": "x"}
        self.assert_fails(holdfast_run.run("train", cwd=self.folder, env=variable), 2, "--save-every-steps is x")
        self.assert_fails(holdfast_run.run("replay", "run", "--step", 0), 2, "--step is 0, must be at least 1\n")
        self.assert_fails(holdfast_run.run("supervise", "--np", 0, "--", "train"), 2, "--np is 0, must be at least 1\n")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_number_with_too_many_digits(self):
        many, file = "9" * 20, self.shared_folder / "many.toml"
        file.write_text(f"epochs = {many}\n")
        for arguments, env in ((["--epochs", many], {}), ([], {"HOLDFAST_EPOCHS": many}), (["--config", file], {})):
            ended = holdfast_run.run("train", *arguments, env=env, cwd=self.folder)
            self.assert_fails(ended, 2, f"--epochs is {many}, must fit 64 bits")
        self.assert_fails(holdfast_run.run("bench", "--seed", f"-{many}"), 2, f"--seed is -{many}, must fit 64 bits")
        self.assert_fails(holdfast_run.run("train", "--seed", 7, "--epochs", 2**32 - 7, cwd=self.folder), 2, "--seed is 7 and --epochs 4294967289")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_bad_value_of_a_launch_is_told_once(self):
        self.assert_refused_once(["train", "--batch-size", 0], "--batch-size is 0")
        self.assert_refused_once(["train", "--model", "resnet50"], "resnet50", "resnet34")
        self.assert_refused_once(["bench", "--width", 0], "--width is 0")

    def test_bad_configuration_files(self):
        table = {
            "batch-siz = 3": ["batch-siz"],
            "[trian]\nlr = 1": ["trian"],
            "[eval]\njson = true": ["eval"],
            'lr = "much"': ["lr", "much"],
            "keep = 1": [".toml: --keep is 1, must be at least 2"],
            "lr = -1": ["lr"],
            'config = "other.toml"': ["config"],
        }
        for number, (text, words) in enumerate(table.items()):
            with self.subTest(text):
                file = self.shared_folder / f"{number}.toml"
                file.write_text(text + "\n")
                self.assert_fails(holdfast_run.run("train", "--config", file, cwd=self.folder), 2, *words)
        self.assert_refused_once(["train", "--config", self.shared_folder / "0.toml"], str(self.shared_folder / "0.toml"), "batch-siz")
        self.assert_refused_once(["train", "--config", self.folder / "missing.toml"], "missing.toml")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_bad_environment(self):
        self.assert_refused_once(["train"], "much", env={"HOLDFAST_LR": "much"})
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_misspelt_variables(self):
        table = {"HOLDFAST_BATCHSIZE": "HOLDFAST_BATCH_SIZE", "HOLDFAST_EPOCH": "HOLDFAST_EPOCHS", "HOLDFAST_CIFAR_10": "HOLDFAST_CIFAR10"}
        for misspelt, meant in table.items():
            self.assert_refused_once(["train"], misspelt, f"did you mean {meant}?", env={misspelt: 1})
        for name in ("HOLDFAST_WITH_CUDA", "HOLDFAST_X"):
            ended = holdfast_run.run("train", env={name: 1}, cwd=self.folder)
            self.assert_fails(ended, 2, f"{name} means nothing to Holdfast", "unset it")
            self.assertNotIn("did you mean", ended.text)
        for command in (["info"], ["verify", self.folder], ["bench", "--steps", 1]):
            self.assert_fails(holdfast_run.run(*command, env={"HOLDFAST_SEDE": 1}, cwd=self.folder), 2, "HOLDFAST_SEED?")
        self.assertEqual(list(self.folder.iterdir()), [])
        self.run_ok("train", "--help", env={"HOLDFAST_SEDE": 1})

    def test_documented_variables_are_taken(self):
        page = Path(__file__).resolve().parents[2] / "docs" / "environment.md"
        first_columns = "".join(re.findall(r"(?m)^\|([^|]*)\|", page.read_text()))
        documented = set(re.findall(r"HOLDFAST_[A-Z0-9_]*[A-Z0-9]", first_columns)) - {"HOLDFAST_DATA", "HOLDFAST_RUN"}
        self.assertGreater(len(documented), 5)
        of_another_command = {"HOLDFAST_WARM_UP": 2, "HOLDFAST_QUALITY": 50, "HOLDFAST_LR": 0.5, "HOLDFAST_MAX_RESTARTS": 5}
        self.run_ok("info", env=dict.fromkeys(documented, "x") | of_another_command)
        self.run_ok("info", env={"HOLDFAST_NONSENSE": ""})

    def test_flag_given_twice(self):
        self.assert_refused_once(["train", "--lr", 0.5, "--seed", 1, "--lr", 0.25], "--lr is given 2 times, with 0.5 and 0.25")
        self.assert_refused_once(["train", "--seed=1", "--seed=1"], "--seed is given 2 times")
        self.assert_refused_once(["bench", "--json", "--json"], "--json is given 2 times")
        file = self.shared_folder / "twice.toml"
        for text in ("lr = 1\nseed = 1\nlr = 2", "lr = 1\n[train]\nlr = 1"):
            file.write_text(text + "\n")
            self.assert_refused_once(["train", "--config", file], str(file), "'lr' is there twice")
        file.write_text("lr = [1, 2]\n")
        self.assert_refused_once(["train", "--config", file], str(file), "'lr' has 2 values")
        self.assertEqual(list(self.folder.iterdir()), [])


class WhereValuesComeFrom(holdfast_run.TestCase):
    def printed(self, *arguments, env: dict = {}) -> dict:
        return tomllib.loads(self.run_ok("train", *arguments, "--print-config", env=env, cwd=self.folder).stdout)

    def file(self, text: str) -> Path:
        path = self.folder / "settings.toml"
        path.write_text(text)
        return path

    def test_defaults_are_the_tutorial_recipe(self):
        recipe = {"model": "resnet34", "batch-size": 128, "epochs": 15, "lr": 0.1, "momentum": 0.9, "lr-step-size": 5, "lr-gamma": 0.1}
        printed = self.printed()
        self.assertEqual({key: printed[key] for key in recipe}, recipe)
        self.assertEqual((printed["data"], printed["run"], printed["resume"]), ("sample", "./holdfast-run", "auto"))
        self.assertEqual(list(self.folder.iterdir()), [], "--print-config wrote something")

    def test_flag_before_environment_before_file_before_default(self):
        file = self.file("lr = 0.3\nmomentum = 0.3\nseed = 3\n")
        env = {"HOLDFAST_MOMENTUM": 0.2, "HOLDFAST_SEED": 2, "HOLDFAST_LR_STEP_SIZE": 7}
        printed = self.printed("--config", file, "--seed", 1, env=env)
        wanted = {"lr": 0.3, "momentum": 0.2, "seed": 1, "lr-step-size": 7, "lr-gamma": 0.1}
        self.assertEqual({key: printed[key] for key in wanted}, wanted)

    def test_the_same_with_a_real_run(self):
        flags = narrow(max_steps=1)
        for flag in ("--lr", "--lr-step-size"):
            del flags[flags.index(flag) : flags.index(flag) + 2]
        run = self.folder / "run"
        file = self.file("[train]\nlr = 0.3\nmomentum = 0.3\nseed = 3\n")
        env = {"HOLDFAST_MOMENTUM": 0.2, "HOLDFAST_SEED": 2, "HOLDFAST_CONFIG": file, "HOLDFAST_RUN": run}
        self.run_ok("train", *flags, "--seed", 1, ranks=2, env=env)
        settings = inspect(run)["settings"]
        wanted = {"lr": 0.3, "momentum": 0.2, "seed": 1, "lr-step-size": 5}
        self.assertEqual({key: settings[key] for key in wanted}, wanted)
        # What environment and file say is as explicit as a flag.
        refused = holdfast_run.run("train", "--run", run, "--max-steps", 2, ranks=2, env={"HOLDFAST_MOMENTUM": 0.4})
        self.assert_fails(refused, 93, "momentum is 0.2 there and 0.4 here")
        self.file("seed = 9\n")
        refused = holdfast_run.run("train", "--run", run, "--max-steps", 2, "--config", file, ranks=2)
        self.assert_fails(refused, 93, "seed is 1 there and 9 here")

    def test_file_of_the_variable_is_for_all_commands(self):
        run = self.folder / "run"
        text = "batch-size = 3\nsave-every-steps = 5\nlimit-test = 4\n[train]\nlr = 0.3\n[eval]\njson = true\nlimit-test = 3\n"
        env = {"HOLDFAST_CONFIG": self.file(text.replace("limit-test = 4\n", ""))}
        self.assertEqual(self.printed(env=env)["lr"], 0.3)
        self.run_ok("train", *narrow(max_steps=1, lr=0.3), "--run", run, env=env)
        self.assertEqual(json.loads(self.run_ok("eval", run, env=env).stdout)["test_count"], 3)
        for command in (["info"], ["inspect", run], ["verify", run], ["doctor", "--quick"]):
            self.run_ok(*command, env=env)
        refused = holdfast_run.run("info", "--config", env["HOLDFAST_CONFIG"])
        self.assert_fails(refused, 2, "unknown key 'batch-size'")
        self.assert_fails(holdfast_run.run("eval", run, env={"HOLDFAST_CONFIG": self.file(text)}), 2, "'limit-test' is there twice")
        table = {"save-every-step = 5": "save-every-step", "[trian]\nlr = 1": "trian", "[eval]\nlr = 1": "lr", "np = 2": "np", "[supervise]\nnp = 2": "supervise"}
        for text, word in table.items():
            with self.subTest(text):
                self.assert_fails(holdfast_run.run("info", env={"HOLDFAST_CONFIG": self.file(text + "\n")}), 2, "unknown", word)

    def test_printed_configuration_can_be_read_back(self):
        run = self.folder / "run"
        arguments = [*narrow(progress="always", lr="1e-3", save_every_steps=2, keep=7), "--run", run, "--epochs", 1]
        text = self.run_ok("train", *arguments, "--print-config").stdout
        content = tomllib.loads(text)
        self.assertEqual(content["progress"], "always")
        self.assertEqual((content["lr"], content["keep"], content["save-every-steps"]), (0.001, 7, 2))
        self.assertEqual(self.run_ok("train", "--config", self.file(text), "--print-config").stdout, text)
        self.run_ok("train", "--config", self.file(text), ranks=2)
        direct = self.folder / "direct"
        self.run_ok("train", *arguments[: arguments.index("--run")], "--run", direct, "--epochs", 1, ranks=2)
        self.assertEqual(inspect(run)["state_digest"], inspect(direct)["state_digest"])
        self.assertEqual(inspect(run)["settings"], inspect(direct)["settings"])


class OtherCommands(holdfast_run.TestCase):
    def test_dry_run_writes_nothing(self):
        ended = self.run_ok("train", *NARROW, "--epochs", 2, "--dry-run", ranks=2, cwd=self.folder)
        self.assertIn("8 steps in 2 epochs", ended.stdout)
        self.assertEqual(list(self.folder.iterdir()), [])
        self.run_ok("train", *NARROW, "--epochs", 1, ranks=2, cwd=self.folder)
        before = files_below(self.folder)
        self.assertIn("holdfast-run/checkpoints/step-000000000004.h5", before)
        ended = self.run_ok("train", "--epochs", 2, "--dry-run", ranks=2, cwd=self.folder)
        self.assertIn("4 steps in 2 epochs", ended.stdout)
        self.assertEqual(files_below(self.folder), before)

    def test_what_cannot_be_written_is_found_before_anything_is(self):
        run, file = self.folder / "run", self.folder / "regular-file"
        file.write_text("kept\n")
        long_name = self.folder / ("x" * 300)
        bad_logs = {"/nonexistent/x": "No such file", "/proc/x": "No such file", file / "x": "Not a directory"}
        bad_logs |= {self.folder: "Is a directory", long_name: "too long"}
        table = [(["--run", run, "--log-indices", log], f"--log-indices {log}: ", reason) for log, reason in bad_logs.items()]
        table.append((["--run", "/proc/x"], "cannot create the run directory /proc/x: ", "choose another --run"))
        for number, (arguments, *words) in enumerate(table):
            for dry in (["--dry-run"], [])[: 2 if number == 0 else 1]:  # a real launch tries the same
                with self.subTest(f"{arguments} {dry}"):
                    ended = holdfast_run.run("train", *NARROW, "--epochs", 1, *arguments, *dry, cwd=self.folder)
                    self.assert_fails(ended, 93, *words, "(errno ")
                    self.assertNotIn("everything is in order", ended.text)
        self.assertEqual(files_below(self.folder), {"regular-file": b"kept\n"})
        self.assertEqual(list(self.folder.iterdir()), [file])

    def test_trial_of_what_will_be_written_leaves_nothing(self):
        log, empty = self.folder / "indices.jsonl", self.folder / "empty"
        log.write_text("kept\n")
        empty.mkdir()
        for run, indices in ((empty, log), (self.folder / "new" / "run", empty / "new"), ("./new/", "new/indices.jsonl")):
            self.run_ok("train", *NARROW, "--dry-run", "--run", run, "--log-indices", indices, ranks=2, cwd=self.folder)
        self.assertEqual({path.name for path in self.folder.rglob("*")}, {"indices.jsonl", "empty"})
        self.assertEqual(log.read_text(), "kept\n")
        # A log in the run directory that the launch makes, and one that is no file.
        flags = narrow(max_steps=1)
        self.run_ok("train", *flags, "--run", "./new/", "--log-indices", "new/indices.jsonl", cwd=self.folder)
        self.assertEqual(len((self.folder / "new" / "indices.jsonl").read_text().splitlines()), 5)
        self.run_ok("train", *flags, "--run", "other", "--log-indices", "/dev/null", cwd=self.folder)

    def test_start_says_what_is_trained(self):
        ended = self.run_ok("train", *NARROW, "--dry-run", ranks=2, cwd=self.folder)
        for words in ("2 ranks on 1 hosts", "rank  host  device  cores  replicas", "synthetic (47 training images)", "./holdfast-run"):
            self.assertIn(words, ended.stdout)
        self.assertIn("5 replicas x 3 samples = global batch 15", ended.stdout)

    def test_bench(self):
        flags = "bench --width 4 --model resnet18 --batch-size 4 --replicas 3 --threads 1 --steps 3 --warm-up 1".split()
        content = json.loads(self.run_ok(*flags, "--json", ranks=2, cwd=self.folder).stdout)
        wanted = {"ranks": 2, "replicas": 3, "batch_size": 4, "threads": 1, "steps": 3}
        self.assertEqual({key: content[key] for key in wanted}, wanted)
        self.assertEqual(len(content["step_ms"]), 3)
        self.assertEqual(set(content["parts"]), {"data_wait_ms", "compute_ms", "exchange_ms"})
        self.assertEqual(len(content["pss_mb"]), 2)
        for key in ("images_per_s", "start_to_first_step_s", "mfu"):
            self.assertGreater(content[key], 0, key)
        self.assertLess(content["mfu"], 1, "of what a large product of matrices reaches")
        self.assertEqual((content["matmul"]["precision"], content["matmul"]["size"]), ("fp32", 1024))
        arithmetic = content["images_per_s"] * content["flop_per_image"] / (content["matmul"]["tflop_per_s"] * 1e12)
        self.assertAlmostEqual(content["mfu"], arithmetic)
        self.assertNotIn("device_memory_mb", content, "without a GPU")
        text = self.run_ok(*flags, cwd=self.folder).stdout
        for words in ("images/s", "MFU", "MB per rank"):
            self.assertIn(words, text)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_memory_of_many_replicas(self):
        """A rank holds as many gradients as the tree over its replicas is deep, not as many as it has replicas."""
        flags = "bench --width 64 --model resnet18 --batch-size 1 --threads 1 --steps 1 --warm-up 0 --data synthetic:32 --device cpu".split()
        gradient_mb = 11_173_962 * 4 / 1e6
        program = ["taskset", "-c", str(min(os.sched_getaffinity(0))), holdfast_run.binary]  # one core: one replica at a time
        pss_mb = {}
        for replicas in (1, 16):
            ended = holdfast_run.Launch([*program, *flags, "--replicas", replicas, "--json"], {}, self.folder).finish()
            self.assertEqual(ended.code, 0, ended)
            content = json.loads(ended.stdout)
            self.assertEqual(content["slots"], 1)
            pss_mb[replicas] = content["pss_mb"][0]
        # 4 more for 16 leaves, and half of one as room: 3.5 were measured.
        more = (pss_mb[16] - pss_mb[1]) / gradient_mb
        self.assertLess(more, 4.5, pss_mb)
        self.assertGreater(more, 1, f"they are not measured: {pss_mb}")

    def test_packed_images_train(self):
        packed, run = self.folder / "OUT.h5", self.folder / "run"
        ended = self.run_ok("pack", "synthetic:60", packed, "--quality", 95)
        self.assertIn("60 training and", ended.stdout)
        self.run_ok("train", *narrow(packed), "--run", run, "--epochs", 1, ranks=2)
        self.assertEqual((inspect(run)["epoch"], inspect(run)["step"]), (1, 4))
        last_row = (run / "metrics.csv").read_text().splitlines()[-1].split(",")
        self.assertEqual(last_row[4], "60", "every sample once")
        # The data are recognized by content, not by path.
        moved = packed.rename(self.folder / "moved.h5")
        self.run_ok("train", "--run", run, "--data", moved, "--epochs", 2, ranks=1)

    def test_pack_what_is_not_there(self):
        ended = holdfast_run.run("pack", self.folder / "missing", self.folder / "OUT.h5")
        self.assert_fails(ended, 93, "missing")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_pack_into_a_missing_folder(self):
        out = self.folder / "missing" / "OUT.h5"
        ended = holdfast_run.run("pack", "synthetic:20", out)
        self.assert_fails(ended, 93, f"cannot create {out}: No such file", f"check that {out.parent} exists")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_pack_replaces_nothing(self):
        there, folder, link = self.folder / "there.h5", self.folder / "folder.h5", self.folder / "link.h5"
        there.write_text("a checkpoint, say")
        folder.mkdir()
        link.symlink_to(self.folder / "nowhere")
        for out in (there, folder, link):
            with self.subTest(out.name):
                self.assert_fails(holdfast_run.run("pack", "synthetic:20", out), 93, str(out), "exists already")
        self.assertEqual(there.read_text(), "a checkpoint, say")
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"there.h5", "folder.h5", "link.h5"})
        self.assertTrue(folder.is_dir() and link.is_symlink())

    def test_log_of_samples(self):
        log = self.folder / "indices.jsonl"
        arguments = ("--epochs", 1, "--log-indices", log)
        self.run_ok("train", *NARROW, "--run", self.folder / "run", *arguments, ranks=2)
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual([(row["step"], row["replica"]) for row in rows], [(s, r) for s in range(4) for r in range(5)])
        self.assertEqual(sorted(sample for row in rows for sample in row["samples"]), list(range(47)))


if __name__ == "__main__":
    holdfast_run.main()
