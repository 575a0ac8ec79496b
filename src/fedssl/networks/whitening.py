"""A frozen first layer: 3x3 patches, decorrelated and brought to one size by statistics of public images."""

from importlib import resources
from typing import Literal

import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from fedssl.core.errors import FedsslError

Stem = Literal["learned", "whitened"]
KINDS = {3: "colour", 1: "grey"}


class Whitening(nn.Module):
    """Image minus mean, projected on the principal directions of 3x3 patches over their deviations; no ReLU behind it.

    The filters are those of CIFAR-100 (scripts/whitening.py), a file of the package: no image of a client enters, and
    every site has the same bits. They follow from the settings, so they are no weights: they are not trained, averaged,
    compared, sent or saved.
    """

    mean: Tensor
    filters: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels not in KINDS:
            raise FedsslError(
                f'network.stem: "whitened" is for images of 3 channels or 1, these have {channels}: use "learned"'
            )
        tensors = load((resources.files(__package__) / "whitening.safetensors").read_bytes())
        self.register_buffer("mean", tensors[f"{KINDS[channels]}.mean"].view(-1, 1, 1), persistent=False)
        self.register_buffer("filters", tensors[f"{KINDS[channels]}.filters"], persistent=False)

    @property
    def out_channels(self) -> int:
        return len(self.filters)

    def forward(self, images: Tensor) -> Tensor:
        return F.conv2d(images - self.mean, self.filters, padding=1)


def make_stem(stem: Stem, channels: int) -> tuple[nn.Module, int]:
    """What comes before a network's first convolution, and the channels that it sees; learned: nothing comes before."""
    if stem == "learned":
        return nn.Identity(), channels
    whitening = Whitening(channels)
    return whitening, whitening.out_channels
