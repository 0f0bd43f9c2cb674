#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The learning rate of every step equals torch's: of StepLR to the last bit of a double, of CosineAnnealingLR after
a linear warm-up and of OneCycleLR but for rounding (CosineAnnealingLR multiplies from step to step).
"""

from pathlib import Path

import holdfast_program
import torch

import cifar_binary

NUM_EPOCHS = 12
SCHEDULES = [
    (0.1, 5, 0.1),
    (0.3, 2, 0.7),
]  # lr, step size, gamma: the tutorial's, and one whose products all round


def torch_rates(lr: float, step_size: int, gamma: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size, gamma)
    rates = []
    for _ in range(NUM_EPOCHS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def torch_rates_over_the_run(schedule: str, lr: float, num_steps: int, warmup_steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr)
    schedules = torch.optim.lr_scheduler
    if schedule == "one-cycle":
        scheduler = schedules.OneCycleLR(
            optimizer, lr, num_steps, pct_start=warmup_steps / num_steps, cycle_momentum=False
        )
    else:
        warmup = schedules.LinearLR(optimizer, 1 / warmup_steps, total_iters=warmup_steps - 1)
        cosine = schedules.CosineAnnealingLR(optimizer, num_steps - warmup_steps)
        scheduler = schedules.SequentialLR(optimizer, [warmup, cosine], [warmup_steps])
    rates = []
    for _ in range(num_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def our_rates(holdfast, folder: Path, run: Path, **flags) -> list[float]:
    """Of every step of a run on 8 images."""
    holdfast.train(
        data=folder / "data",
        run=run,
        **holdfast_program.SMALLEST_NETWORK,
        epochs=NUM_EPOCHS,
        limit_train=8,
        limit_test=2,
        **flags,
    )
    return [row["lr"] for row in holdfast_program.read_steps(run)]


def check_over_the_run(holdfast, comparison, folder: Path) -> None:
    """Three steps an epoch."""
    for schedule in ("cosine", "one-cycle"):
        flags = {"batch_size": 3, "lr": 0.3, "lr_schedule": schedule, "warmup_epochs": 2}
        ours = our_rates(holdfast, folder, folder / schedule, **flags)
        theirs = torch_rates_over_the_run(schedule, 0.3, 3 * NUM_EPOCHS, 2 * 3)
        worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        comparison.check(f"{schedule}, {len(ours)} steps", worst <= 1e-14, f"differ by up to {worst:g}")


def main() -> None:
    holdfast = holdfast_program.Holdfast(holdfast_program.argument_parser(__doc__).parse_args().holdfast)
    comparison = holdfast_program.Comparison(exact=True)  # plain doubles: equal with any version of torch
    with holdfast_program.scratch_folder() as name:
        folder = Path(name)
        cifar_binary.write_random_set(folder / "data", num_train=8, num_test=2)
        for number, (lr, step_size, gamma) in enumerate(SCHEDULES):
            flags = {"batch_size": 8, "lr": lr, "lr_step_size": step_size, "lr_gamma": gamma}
            ours = our_rates(holdfast, folder, folder / str(number), **flags)
            theirs = torch_rates(lr, step_size, gamma)
            comparison.check(
                f"lr {lr}, x {gamma} every {step_size} epochs", ours == theirs, f"{ours} and {theirs}"
            )
        check_over_the_run(holdfast, comparison, folder)
    comparison.exit()


if __name__ == "__main__":
    main()
