# SPDX-License-Identifier: Apache-2.0
"""Random crop and flip of the images of an epoch, from its description in docs/recipes.md."""

import torch

PADDING = 4
MASK = 0xFFFFFFFF


def philox4x32_10(key: list[int], counter: list[int]) -> list[int]:
    """Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011."""
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & MASK, (a >> 32) ^ counter[3] ^ key[1], a & MASK]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


def crop_and_flip(pixels_NCHW: torch.Tensor, seed: int, epoch: int, samples: list[int]) -> torch.Tensor:
    """As torchvision's RandomCrop(size, padding=4) and RandomHorizontalFlip, before ToTensor; uint8."""
    height, width = pixels_NCHW.shape[2:]
    padded_NCHW = torch.nn.functional.pad(pixels_NCHW, [PADDING] * 4)
    images = []
    for sample in samples:
        counter = [sample & MASK, sample >> 32, epoch & MASK, epoch >> 32]
        random = philox4x32_10([seed & MASK, seed >> 32], counter)
        top, left = ((2 * PADDING + 1) * word >> 32 for word in random[:2])
        image_CHW = padded_NCHW[sample, :, top : top + height, left : left + width]
        images.append(image_CHW.flip(2) if random[2] >> 31 else image_CHW)
    return torch.stack(images)
