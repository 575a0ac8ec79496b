"""The clients' versions of one tensor side by side, and what aggregators compute of them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedssl.core.weights import Weights, in_dtype

VALUES_AT_ONCE = 2**18  # what is sorted or compared in one go, over all clients: stays in the processor's cache


def distance(tensors: Mapping[str, Tensor], previous: Weights) -> float:
    """How far tensors are from those of the same names; in float64: the square of a large float32 would be infinite."""
    origin = previous.tensors()
    pairs = (pair.double() for name in tensors for pair in slices([tensors[name], origin[name]]))
    return math.hypot(*(float(torch.linalg.vector_norm(to - from_)) for to, from_ in pairs))


def by_coordinate(uploads: Sequence[Weights], pick: Callable[[Tensor], Tensor]) -> Weights:
    """For every coordinate, what `pick` makes of the clients' values, given in rising order along dimension 0."""
    named = [upload.tensors() for upload in uploads]

    def combine(name: str, first: Tensor) -> Tensor:
        picked = [pick(_in_order(values)) for values in slices([tensors[name] for tensors in named])]
        return torch.cat(picked).reshape(first.shape)

    return uploads[0].map(combine)


def slices(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The clients' versions of one tensor as rows of a K x … matrix, cut so that none is large."""
    width = max(VALUES_AT_ONCE // len(tensors), 1)
    for rows in zip(*(torch.split(tensor.reshape(-1), width) for tensor in tensors), strict=True):
        yield torch.stack(rows)


def _in_order(values: Tensor) -> Tensor:
    """Sorted by numpy, which is several times faster at this; bfloat16, which it lacks, fits into float32."""
    known = values.float() if values.dtype == torch.bfloat16 else values
    return torch.from_numpy(np.sort(known.numpy(), axis=0)).to(values.dtype)


def middle(ordered: Tensor) -> Tensor:
    """The median is the mean of the one or two that are left when all others are trimmed."""
    return inner_mean(ordered, (len(ordered) - 1) // 2)


def inner_mean(ordered: Tensor, trim: int) -> Tensor:
    kept = ordered[trim : len(ordered) - trim]
    mean = in_dtype(kept.double().mean(dim=0), kept.dtype)
    return mean.maximum(kept[0]).minimum(kept[-1])  # rounding or overflow may not lead out of what was kept
