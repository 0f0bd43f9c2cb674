# SPDX-License-Identifier: Apache-2.0
"""What the parts of scripts/gpu-check have left in a folder, as a table and as report.json.

Usage: gpu_check_report.py OUT --folder PREPARED --device cuda|cpu. Exits with 1 if a part has failed.
"""

import argparse
import csv
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path

SKIPPED, KILLED = 77, 137


def first_line(*command: str, pattern: str = ".+") -> str:
    """Of what the command prints, the first line that has the pattern; "none" where there is no such command."""
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    lines = [line.strip() for line in printed.splitlines() if re.search(pattern, line)]
    return lines[0] if lines else "none"


def facts_of(folder: Path) -> dict:
    """key=value lines, as a shell reads them."""
    lines = [line.partition("=") for line in (folder / "facts").read_text().splitlines()]
    facts = {key: value.strip('"') for key, _, value in lines}
    return facts | {"packages": (folder / "packages.txt").read_text().splitlines()}


def machine(device: str) -> dict:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    found = {
        "cpu": cpu.partition(": ")[2],
        "cores": len(os.sched_getaffinity(0)),
        "glibc": platform.libc_ver()[1],
        "python": platform.python_version(),
        "cmake": first_line("cmake", "--version"),
        "compiler": first_line("c++", "--version"),
        "torch": metadata.version("torch"),
    }
    if device == "cuda":
        import torch

        query = "--query-gpu=name,driver_version,memory.total,clocks.max.sm"
        found |= {
            "gpu": first_line("nvidia-smi", query, "--format=csv,noheader"),
            "nvcc": first_line("nvcc", "--version", pattern="release"),
            "torch_cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found


def parts_of(out: Path) -> list[dict]:
    parts = []
    for line in (out / "parts").read_text().splitlines():
        name, code, seconds, limit_s = line.split()
        words = {0: "passed", SKIPPED: "skipped", KILLED: "took too long"}
        result = words.get(int(code), f"failed with {code}")
        parts.append({"part": name, "result": result, "seconds": int(seconds), "limit_s": int(limit_s)})
    return parts


def training(run_dir: Path) -> dict | None:
    """What a run took, and how good the network became."""
    if not (run_dir / "metrics.csv").exists():
        return None
    rows = list(csv.DictReader((run_dir / "metrics.csv").read_text().splitlines()))
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    epochs = [event for event in events if event["event"] == "epoch"]
    if not rows or not epochs:
        return None
    return {
        "epochs": len(rows),
        "training_s": sum(event["time_s"] for event in epochs),
        "images_per_s": epochs[-1]["images_per_s"],
        "test_accuracy": float(rows[-1]["test_accuracy"]),
    }


def json_of(file: Path) -> dict | None:
    """None for one that a part has not written, or not to its end."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def bench_of(out: Path, reduction: str) -> dict[int, dict]:
    """By batch size, with the medians of the steps."""
    found = {}
    for file in out.glob(f"bench-{reduction}-*.json"):
        if bench := json_of(file):
            bench["step_median_ms"] = statistics.median(bench["step_ms"])
            waits = bench["parts"]["data_wait_ms"]
            bench["data_wait"] = statistics.median(waits) / bench["step_median_ms"]
            at_work = sum(bench["parts"]["compute_ms"]) + sum(bench["parts"]["exchange_ms"])
            bench["idle"] = 1 - at_work / sum(bench["step_ms"])
            found[bench["batch_size"]] = bench
    return dict(sorted(found.items()))


def pytorch_of(out: Path) -> dict[tuple[str, int], dict]:
    results = (json_of(out / "pytorch.json") or {"results": []})["results"]
    return {(result["way"], result["batch_size"]): result for result in results}


def goals(bench: dict, pytorch: dict, runs: dict) -> list[dict]:
    """Those for one H200. They say how good it is; whether it works, the parts say."""
    rows = []

    def add(what: str, found: float | None, at_most: float | None = None, at_least: float | None = None) -> None:
        if found is not None:
            reached = found <= at_most if at_most is not None else found >= at_least
            goal = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}"
            rows.append({"what": what, "found": found, "goal": goal, "reached": reached})

    step_ms = bench[128]["step_median_ms"] if 128 in bench else None
    for way, at_most in (("eager", 0.5), ("graph", 1.0)):
        if step_ms and (way, 128) in pytorch:
            add(f"step at 128 / PyTorch {way}", step_ms / pytorch[way, 128]["step_ms"], at_most=at_most)
    speeds = [bench[size]["images_per_s"] for size in (512, 1024) if size in bench]
    add("images/s at 512 to 1024", max(speeds, default=None), at_least=80000)
    waits = [of_size["data_wait"] for of_size in bench.values()]
    add("waiting for data / step", max(waits, default=None), at_most=0.03)
    add("GPU idle / step", max((of_size["idle"] for of_size in bench.values()), default=None), at_most=0.03)
    tutorial, strong = runs["tutorial"], runs["strong"]
    add("tutorial recipe, 15 epochs [s]", tutorial and tutorial["training_s"], at_most=20)
    add("strong recipe, test accuracy", strong and strong["test_accuracy"], at_least=0.9)
    return rows


def print_tables(report: dict, bench: dict, fast: dict, pytorch: dict) -> None:
    on = report["machine"].get("gpu", report["machine"]["cpu"])
    print(f"\n{on} | torch {report['machine']['torch']} | data: {report['prepared']['data']}")
    for part in report["parts"]:
        print(f"  {part['part']:10}{part['result']:16}{part['seconds']:4} s of {part['limit_s']}")
    if bench:
        columns = ("batch", "exact [ms]", "images/s", "MFU", "idle", "fast [ms]", "eager [ms]", "graph [ms]")
        print("\n  " + "".join(f"{column:>12}" for column in columns) + "   (eager, graph: PyTorch)")
        for size, row in bench.items():
            steps_ms = [fast[size]["step_median_ms"] if size in fast else None]
            steps_ms += [pytorch.get((way, size), {}).get("step_ms") for way in ("eager", "graph")]
            figures = f"{row['step_median_ms']:12.3f}{row['images_per_s']:12.0f}{row['mfu']:12.3f}{row['idle']:12.3f}"
            print(f"  {size:12}{figures}" + "".join(f"{ms:12.3f}" if ms else f"{'-':>12}" for ms in steps_ms))
    for name, run in report["runs"].items():
        if run:
            accuracy = f"test accuracy {100 * run['test_accuracy']:.2f} %"
            print(f"\n  {name}: {run['epochs']} epochs, {run['training_s']:.1f} s of training, {accuracy}")
    if report["goals"]:
        print(f"\n  {'goals for an H200':34}{'found':>10}  goal")
        for row in report["goals"]:
            missed = "" if row["reached"] else "  missed"
            print(f"  {row['what']:34}{row['found']:10.4g}  {row['goal']}{missed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="made by scripts/gpu-check --prepare")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    options = parser.parse_args()
    bench, fast = (bench_of(options.out, reduction) for reduction in ("exact", "fast"))
    pytorch = pytorch_of(options.out)
    runs = {name: training(options.out / name) for name in ("tutorial", "strong")}
    report = {
        "device": options.device,
        "machine": machine(options.device),
        "prepared": facts_of(options.folder),
        "parts": parts_of(options.out),
        "bench": list(bench.values()),
        "bench_fast": list(fast.values()),
        "pytorch": json_of(options.out / "pytorch.json"),
        "runs": runs,
        "goals": goals(bench, pytorch, runs) if options.device == "cuda" else [],
    }
    (options.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print_tables(report, bench, fast, pytorch)
    print(f"\n  all figures: {options.out / 'report.json'}")
    failed = [part["part"] for part in report["parts"] if part["result"] not in ("passed", "skipped")]
    if failed:
        sys.exit(f"failed: {', '.join(failed)} (logs in {options.out})")


if __name__ == "__main__":
    main()
