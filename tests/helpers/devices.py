"""Networks and methods for training in several processes, where they are found again by import."""

import os
import time

import torch.distributed as dist
from torch import nn

from fedssl.methods.byol import BYOL


class WithoutBatchNorm(nn.Module):
    """A small convnet with GroupNorm: what it computes for an image does not depend on the others."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(2, 16)

    def forward(self, images):
        hidden = self.norm1(self.conv1(images)).relu()
        return self.norm2(self.conv2(hidden)).relu().mean(dim=(2, 3))


class Dies(BYOL):
    """The second process is gone at its second step."""

    seen = 0

    def loss(self, views):
        self.seen += 1
        if self.seen == 2 and dist.get_rank() == 1:
            os._exit(7)
        return super().loss(views)


class Raises(BYOL):
    def loss(self, views):
        raise ValueError("no such luck")


class Sleeps(BYOL):
    def loss(self, views):
        time.sleep(0.2)
        return super().loss(views)
