#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which samples each replica reads in each step, read from --log-indices, equals PyTorch's
DistributedSampler (--tail pad) and a strided split of torch.randperm that neither pads nor drops (--tail
exact).
"""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import holdfast_program
import torch
from torch.utils.data import DistributedSampler

import cifar_binary

SIZES = (2, 10, 97, 128, 500, 1009)  # fewer samples than replicas, primes, whole batches
SEEDS = (0, 1, 123_456)
NUM_EPOCHS = 3
NUM_REPLICAS = 3
BATCH_SIZE = 16


def split_in_batches(samples: list[int]) -> list[list[int]]:
    return [samples[first : first + BATCH_SIZE] for first in range(0, len(samples), BATCH_SIZE)]


def padded_batches(size: int, seed: int, epoch: int, replica: int) -> list[list[int]]:
    sampler = DistributedSampler(range(size), NUM_REPLICAS, replica, shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    return split_in_batches(list(sampler))


def exact_batches(size: int, seed: int, epoch: int, replica: int) -> list[list[int]]:
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    global_batch = NUM_REPLICAS * BATCH_SIZE
    return [
        order[first : first + global_batch][replica::NUM_REPLICAS] for first in range(0, size, global_batch)
    ]


EXPECTED = {"pad": padded_batches, "exact": exact_batches}


def logged_samples(path: Path) -> dict[tuple[int, int, int], list[int]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    logged = {(row["epoch"], row["step"], row["replica"]): row["samples"] for row in rows}
    assert len(logged) == len(rows), f"{path} logs a step twice"
    return logged


def expected_samples(tail: str, size: int, seed: int) -> dict[tuple[int, int, int], list[int]]:
    expected = {}
    for replica in range(NUM_REPLICAS):
        step = 0
        for epoch in range(NUM_EPOCHS):
            for batch in EXPECTED[tail](size, seed, epoch, replica):
                expected[epoch, step, replica] = batch
                step += 1
    return expected


def run_and_compare(holdfast, folder: Path, tail: str, size: int, seed: int) -> tuple[str, str]:
    run = folder / f"{tail}-{size}-{seed}"
    log = folder / f"{run.name}.jsonl"
    holdfast.train(
        data=folder / "data",
        run=run,
        **holdfast_program.SMALLEST_NETWORK,
        lr=1e-3,
        replicas=NUM_REPLICAS,
        batch_size=BATCH_SIZE,
        epochs=NUM_EPOCHS,
        seed=seed,
        limit_train=size,
        limit_test=2,
        tail=tail,
        log_indices=log,
    )
    logged, expected = logged_samples(log), expected_samples(tail, size, seed)
    different = sorted(key for key in logged.keys() | expected.keys() if logged.get(key) != expected.get(key))
    name = f"{size} samples, seed {seed}, --tail {tail}"
    if not different:
        return name, ""
    key = different[0]
    return name, (
        f"{len(different)} of {len(expected)} batches differ, first (epoch, step, replica) = {key}: "
        f"{logged.get(key)} in place of {expected.get(key)}"
    )


def main() -> None:
    holdfast = holdfast_program.Holdfast(holdfast_program.argument_parser(__doc__).parse_args().holdfast)
    comparison = holdfast_program.Comparison(exact=True)  # integers: equal with any version of torch
    cases = [("pad", size, seed) for size, seed in product(SIZES, SEEDS)] + [
        ("exact", size, 1) for size in SIZES[:3]
    ]
    with holdfast_program.scratch_folder() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        cifar_binary.write_random_set(folder / "data", num_train=max(SIZES), num_test=2)
        for case, difference in pool.map(lambda case: run_and_compare(holdfast, folder, *case), cases):
            comparison.check(case, not difference, difference)
    comparison.exit()


if __name__ == "__main__":
    main()
