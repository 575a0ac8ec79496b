"""Backbones of a user, named in configs as own_networks:NAME."""

import torch
from torch import nn


class Small(nn.Module):
    """Its parts are called as those that fedssl leaves out or renames elsewhere."""

    def __init__(self, channels):
        super().__init__()
        self.downsample = nn.Sequential(nn.Conv2d(channels, 6, 3, 2), nn.ReLU())
        self.fc = nn.Linear(6, 5)

    def forward(self, images):
        return self.fc(self.downsample(images).mean(dim=(2, 3)))


class Branching(Small):
    """Looks at its data to decide what to do: no exporter can write that down."""

    def forward(self, images):
        return super().forward(images) if images.mean() > 0.1 else super().forward(1 - images)


class Flat(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, images):
        return images.mean(dim=(2, 3)) * self.scale
