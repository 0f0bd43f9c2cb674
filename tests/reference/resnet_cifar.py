# SPDX-License-Identifier: Apache-2.0
"""torchvision's ResNet-18/34 with the CIFAR stem, at any width.

torchvision fixes the width at 64 channels, tests want narrow networks. At width 64 names, shapes, initial
weights and outputs are torchvision's own (compare_initial_weights.py checks it), so the layers are
constructed in torchvision's order: that decides which random numbers each of them draws.
"""

import torch
from torch import nn

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        downsample = None  # constructed before the block's own convolutions, as in torchvision
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            downsample = nn.Sequential(projection, nn.BatchNorm2d(out_channels))
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample = downsample

    def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        out_NCHW = self.relu(self.bn1(self.conv1(x_NCHW)))
        out_NCHW = self.bn2(self.conv2(out_NCHW))
        out_NCHW += x_NCHW if self.downsample is None else self.downsample(x_NCHW)
        return self.relu(out_NCHW)


class ResNet(nn.Module):
    def __init__(self, model: str, width: int, num_classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)  # replaced by make_resnet
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        in_channels = width
        for stage, num_blocks in enumerate(BLOCKS[model]):
            out_channels = width << stage
            blocks = []
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(BasicBlock(in_channels, out_channels, stride))
                in_channels = out_channels
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(in_channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        x_NCHW = self.relu(self.bn1(self.conv1(images_NCHW)))
        x_NCHW = self.layer4(self.layer3(self.layer2(self.layer1(x_NCHW))))
        return self.fc(torch.flatten(self.avgpool(x_NCHW), 1))


def make_resnet(model: str, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    network = ResNet(model, width)
    network.conv1 = conv3x3(3, width, stride=2)
    return network


def make_torchvision_resnet(model: str, seed: int) -> nn.Module:
    """The tutorial's own lines."""
    import torchvision

    torch.manual_seed(seed)
    network = getattr(torchvision.models, model)(num_classes=10)
    network.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=2, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network
