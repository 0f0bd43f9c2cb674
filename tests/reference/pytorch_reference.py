#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The run that Holdfast must equal, in plain PyTorch: one process, or one process per replica with
DistributedDataParallel over gloo. Starts from the weights of a Holdfast checkpoint and writes losses,
learning rates and the final state to an .npz file.
"""

import argparse
import dataclasses
import os
import tempfile
from pathlib import Path

import h5py
import numpy
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.utils.data import DistributedSampler

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


def train(recipe: Recipe, rank: int, checkpoint: Path, data: Path) -> dict[str, numpy.ndarray]:
    torch.set_num_threads(recipe.threads)
    torch.set_flush_denormal(True)
    images_NCHW, labels_N = cifar_binary.read_train_set(data, recipe.limit_train)
    network = resnet_cifar.make_resnet(recipe.model, recipe.width, recipe.seed)
    load_weights(network, checkpoint)
    replica = nn.parallel.DistributedDataParallel(network) if recipe.replicas > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), recipe.lr, recipe.momentum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, recipe.lr_step_size, recipe.lr_gamma)

    losses, rates, open_epoch = [], [], 0
    for _, (epoch, samples) in zip(range(recipe.steps), batches_forever(len(labels_N), recipe, rank)):
        if epoch != open_epoch:
            scheduler.step()
            open_epoch = epoch
        rates.append(optimizer.param_groups[0]["lr"])
        loss = nn.functional.cross_entropy(replica(images_NCHW[samples]), labels_N[samples])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(mean_over_replicas(loss, len(samples)))

    return {
        "losses": numpy.array(losses, numpy.float32),
        "lrs": numpy.array(rates),
        **final_state(network, optimizer),
    }


def final_state(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, numpy.ndarray]:
    """Keys are the dataset names of a Holdfast checkpoint."""
    state = {}
    for name, parameter in network.named_parameters():
        state[f"model/{name}"] = parameter.detach().numpy()
        state[f"momentum/{name}"] = optimizer.state[parameter]["momentum_buffer"].numpy()
    for name, buffer in network.named_buffers():
        state[f"buffers/{name}"] = buffer.numpy()
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
