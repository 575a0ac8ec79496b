"""A few images of every client with two augmented views of each: what pre-training is asked to find alike."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedssl.core.seeding import torch_stream
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import make_views
from fedssl.data.partition import IntArray, Partition

UInt8Array = np.ndarray[Any, np.dtype[np.uint8]]
MOST_CLIENTS = 8
EACH = 3


@dataclass(frozen=True, kw_only=True)
class ClientViews:
    """Images of one client, N x C x H x W, and two views of each."""

    client: int
    numbers: IntArray  # of the images in the training set
    originals: UInt8Array
    first: UInt8Array
    second: UInt8Array


def client_views(pixels: Tensor, partition: Partition, recipe: Recipe, seed: int) -> list[ClientViews]:
    """For the first clients, as many as one can look at: images evenly spaced over what the client holds."""
    shown = []
    for client, held in enumerate(partition.clients[:MOST_CLIENTS]):
        if not len(held):
            continue
        numbers = held[np.unique(np.linspace(0, len(held) - 1, min(EACH, len(held))).round().astype(np.int64))]
        originals = pixels.index_select(0, torch.from_numpy(numbers))
        views = make_views(originals, recipe, torch_stream(seed, "shown views", client))
        first, second = (view.mul(255).round().to(torch.uint8).numpy() for view in views)
        shown.append(
            ClientViews(client=client, numbers=numbers, originals=originals.numpy(), first=first, second=second)
        )
    return shown
