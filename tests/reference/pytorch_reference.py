#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The run that Holdfast must equal, in plain PyTorch: one process, or one process per replica with
DistributedDataParallel over gloo. Starts from the weights of a Holdfast checkpoint and writes losses,
learning rates and the final state to an .npz file.
"""

import argparse
import dataclasses
import math
import os
import tempfile
from pathlib import Path

import h5py
import numpy
import torch
import torch.distributed
import torch.multiprocessing
import torch.optim.swa_utils
from torch import nn
from torch.utils.data import DistributedSampler

import augmentation
import cifar_binary
import resnet_cifar


@dataclasses.dataclass(frozen=True)
class Recipe:
    model: str = "resnet34"
    width: int = 64
    replicas: int = 1
    batch_size: int = 16  # per replica
    seed: int = 0
    steps: int = 20
    lr: float = 0.1
    momentum: float = 0.9
    lr_step_size: int = 5  # epochs
    lr_gamma: float = 0.1
    lr_schedule: str = "step"  # or "one-cycle"
    warmup_epochs: int = 0  # of one-cycle
    epochs: int = 100
    nesterov: bool = False
    weight_decay: float = 0
    label_smoothing: float = 0
    ema_decay: float = 0
    augment: str = "none"  # or "crop-flip"
    threads: int = 1  # per replica
    limit_train: int = 50_000


def load_weights(network: nn.Module, checkpoint: Path) -> None:
    with h5py.File(checkpoint) as file:
        weights = {name: torch.from_numpy(dataset[...]) for name, dataset in file["model"].items()}
    expected = {name for name, _ in network.named_parameters()}
    assert weights.keys() == expected, f"{checkpoint}: other names: {sorted(weights.keys() ^ expected)}"
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            assert parameter.shape == weights[name].shape, (
                f"{checkpoint}: {name} has shape {weights[name].shape}"
            )
            parameter.copy_(weights[name])


def batches_forever(num_samples: int, recipe: Recipe, rank: int):
    """Yields (epoch, sample numbers of this replica's batch): DistributedSampler's order, nothing dropped."""
    sampler = DistributedSampler(range(num_samples), recipe.replicas, rank, shuffle=True, seed=recipe.seed)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        samples = list(sampler)
        for first in range(0, len(samples), recipe.batch_size):
            yield epoch, samples[first : first + recipe.batch_size]
        epoch += 1


def mean_over_replicas(loss: torch.Tensor, num_samples: int) -> float:
    """Weighted by samples in float32, the weight applied first: that is how Holdfast adds losses."""
    if not torch.distributed.is_initialized():
        return loss.item()
    count = torch.tensor(num_samples)
    torch.distributed.all_reduce(count)
    share = loss.detach() * (num_samples / count.item())
    torch.distributed.all_reduce(share)
    return share.item()


def make_optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Weight decay of weights alone: BatchNorm's parameters and biases have one dimension."""
    parameters = list(network.parameters())
    weights = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() == 1]
    groups = [{"params": weights, "weight_decay": recipe.weight_decay}, {"params": others}]
    return torch.optim.SGD(groups, recipe.lr, recipe.momentum, nesterov=recipe.nesterov)


def make_scheduler(optimizer: torch.optim.Optimizer, recipe: Recipe, steps_per_epoch: int):
    """To be asked for another rate after every step."""
    schedules = torch.optim.lr_scheduler
    if recipe.lr_schedule == "one-cycle":
        share = recipe.warmup_epochs / recipe.epochs
        total_steps = recipe.epochs * steps_per_epoch
        return schedules.OneCycleLR(
            optimizer, recipe.lr, total_steps=total_steps, pct_start=share, cycle_momentum=False
        )
    return schedules.StepLR(optimizer, recipe.lr_step_size * steps_per_epoch, recipe.lr_gamma)


def make_average(network: nn.Module, decay: float) -> torch.optim.swa_utils.AveragedModel:
    """Begins with the first weights, as update number 0, and forgets faster at the beginning (docs/recipes.md)."""

    def move(averages, values, num_averaged):
        if not averages[0].is_floating_point():
            return
        step = num_averaged.item() - 1
        torch._foreach_lerp_(averages, values, 1 - min(decay, (1 + step) / (10 + step)))

    average = torch.optim.swa_utils.AveragedModel(network, multi_avg_fn=move, use_buffers=True)
    average.update_parameters(network)
    return average


def train(recipe: Recipe, rank: int, checkpoint: Path, data: Path) -> dict[str, numpy.ndarray]:
    torch.set_num_threads(recipe.threads)
    torch.set_flush_denormal(True)
    pixels_NCHW, labels_N = cifar_binary.read_train_set(data, recipe.limit_train)
    network = resnet_cifar.make_resnet(recipe.model, recipe.width, recipe.seed)
    load_weights(network, checkpoint)
    replica = nn.parallel.DistributedDataParallel(network) if recipe.replicas > 1 else network
    optimizer = make_optimizer(network, recipe)
    scheduler = make_scheduler(
        optimizer, recipe, math.ceil(len(labels_N) / (recipe.replicas * recipe.batch_size))
    )
    average = make_average(network, recipe.ema_decay) if recipe.ema_decay > 0 else None

    losses, rates = [], []
    for _, (epoch, samples) in zip(range(recipe.steps), batches_forever(len(labels_N), recipe, rank)):
        rates.append(optimizer.param_groups[0]["lr"])
        if recipe.augment == "crop-flip":
            batch_NCHW = augmentation.crop_and_flip(pixels_NCHW, recipe.seed, epoch, samples)
        else:
            batch_NCHW = pixels_NCHW[samples]
        logits_NK = replica(cifar_binary.normalize(batch_NCHW))
        loss = nn.functional.cross_entropy(
            logits_NK, labels_N[samples], label_smoothing=recipe.label_smoothing
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if average is not None:
            average.update_parameters(network)
        losses.append(mean_over_replicas(loss, len(samples)))

    return {
        "losses": numpy.array(losses, numpy.float32),
        "lrs": numpy.array(rates),
        **final_state(network, optimizer, average),
    }


def final_state(network: nn.Module, optimizer: torch.optim.Optimizer, average) -> dict[str, numpy.ndarray]:
    """Keys are the dataset names of a Holdfast checkpoint."""
    state = {}
    for name, parameter in network.named_parameters():
        state[f"model/{name}"] = parameter.detach().numpy()
        state[f"momentum/{name}"] = optimizer.state[parameter]["momentum_buffer"].numpy()
    for name, buffer in network.named_buffers():
        state[f"buffers/{name}"] = buffer.numpy()
    if average is not None:
        for name, value in average.module.state_dict().items():
            if value.is_floating_point():
                state[f"ema/{name}"] = value.numpy()
    return state


def replica_process(
    rank: int, recipe: Recipe, meeting_point: str, checkpoint: Path, data: Path, output: Path
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=recipe.replicas
    )
    result = train(recipe, rank, checkpoint, data)
    if rank == 0:
        numpy.savez(output, **result)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run(recipe: Recipe, checkpoint: Path, data: Path, output: Path) -> dict[str, numpy.ndarray]:
    if recipe.replicas == 1:
        numpy.savez(output, **train(recipe, 0, checkpoint, data))
    else:
        with tempfile.TemporaryDirectory() as folder:
            arguments = (recipe, f"{folder}/meeting_point", checkpoint, data, output)
            torch.multiprocessing.spawn(replica_process, arguments, nprocs=recipe.replicas)
    with numpy.load(output) as result:
        return dict(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="Holdfast checkpoint to take the weights from"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary files")
    parser.add_argument("--output", type=Path, required=True, help=".npz file to write")
    for field in dataclasses.fields(Recipe):
        parser.add_argument("--" + field.name.replace("_", "-"), type=field.type, default=field.default)
    arguments = vars(parser.parse_args())
    places = [arguments.pop(name) for name in ("checkpoint", "data", "output")]
    result = run(Recipe(**arguments), *places)
    for step, (loss, rate) in enumerate(zip(result["losses"], result["lrs"])):
        print(f"step {step} loss {loss!s} lr {rate!s}")


if __name__ == "__main__":
    main()
