#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The first weights are those of torch.manual_seed and torchvision, and so are all names and shapes."""

from pathlib import Path

import holdfast_program
import numpy

import cifar_binary
import resnet_cifar

RESNET34_PARAMETERS = 21_282_122  # torchvision's resnet34, 10 classes, 3x3 stem


def arrays_of(network) -> dict[str, numpy.ndarray]:
    arrays = {f"model/{name}": parameter.detach().numpy() for name, parameter in network.named_parameters()}
    return arrays | {f"buffers/{name}": buffer.numpy() for name, buffer in network.named_buffers()}


def initial_state(holdfast, folder: Path, model: str, width: int, seed: int) -> dict[str, numpy.ndarray]:
    run = folder / f"{model}-{width}-{seed}"
    holdfast.train(
        data=folder / "data",
        run=run,
        model=model,
        width=width,
        seed=seed,
        threads=1,
        batch_size=8,
        limit_train=16,
        limit_test=8,
        max_steps=0,
    )
    return holdfast_program.read_checkpoint(holdfast_program.newest_checkpoint(run), "model", "buffers")


def check_own_module(comparison, model: str, seed: int) -> None:
    try:
        import torchvision  # noqa: F401
    except ImportError:
        print("NOTE: torchvision is not installed; its names are compared through resnet_cifar.py only")
        return
    ours, theirs = (
        resnet_cifar.make_resnet(model, 64, seed),
        resnet_cifar.make_torchvision_resnet(model, seed),
    )
    comparison.arrays(f"resnet_cifar.py = torchvision, {model}", arrays_of(ours), arrays_of(theirs))
    comparison.check("same order", list(ours.state_dict()) == list(theirs.state_dict()))


def main() -> None:
    holdfast = holdfast_program.Holdfast(holdfast_program.argument_parser(__doc__).parse_args().holdfast)
    comparison = holdfast_program.Comparison.of(holdfast)
    with holdfast_program.scratch_folder() as name:
        folder = Path(name)
        cifar_binary.write_random_set(folder / "data", num_train=16, num_test=8)
        for model, width, seed in [("resnet34", 64, 0), ("resnet18", 64, 3), ("resnet34", 5, 2**31 + 11)]:
            state = initial_state(holdfast, folder, model, width, seed)
            reference = arrays_of(resnet_cifar.make_resnet(model, width, seed))
            comparison.arrays(f"{model}, width {width}, seed {seed}", state, reference)
            if width == 64:
                check_own_module(comparison, model, seed)
            if (model, width) == ("resnet34", 64):
                count = sum(array.size for key, array in state.items() if key.startswith("model/"))
                comparison.check("parameters of resnet34", count == RESNET34_PARAMETERS, str(count))
    comparison.exit()


if __name__ == "__main__":
    main()
