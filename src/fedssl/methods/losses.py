"""The losses of the self-supervised methods, written as the papers' formulas."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any, ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor

Arguments = ParamSpec("Arguments")


def in_float32(loss: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """A loss is computed in float32 also where the networks before it ran in lower precision."""

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) else value

    @wraps(loss)
    def computed(*values: Arguments.args, **named: Arguments.kwargs) -> Tensor:
        device = next(value.device for value in (*values, *named.values()) if isinstance(value, Tensor))
        autocast = torch.amp.is_autocast_available(device.type)
        with torch.autocast(device.type, enabled=False) if autocast else nullcontext():
            return loss(*map(wide, values), **{name: wide(value) for name, value in named.items()})

    return computed


def mean_of_others(outputs: Sequence[Tensor]) -> list[Tensor]:
    """For each view the mean of what the other views gave."""
    places = range(len(outputs))
    return [torch.stack([outputs[j] for j in places if j != i]).mean(dim=0) for i in places]  # V times B x d


def mean_over_views(
    loss: Callable[[Tensor, Tensor], Tensor], predictions: Sequence[Tensor], targets: Sequence[Tensor]
) -> Tensor:
    """The mean over views of a loss of its prediction and its target."""
    losses = [loss(p, z) for p, z in zip(predictions, targets, strict=True)]
    return torch.stack(losses).mean()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """cos(a_i, b_i) for every row i."""
    return F.cosine_similarity(a, b, dim=1)  # N x d, N x d -> N


@in_float32
def byol_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """mean_i (2 − 2 cos(p_i, z_i)): the squared distance of the normalised vectors, for one direction."""
    return (2 - 2 * cosine(prediction, target)).mean()


@in_float32
def simsiam_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """D(p, z) = −mean_i cos(p_i, z_i), for one direction."""
    return -cosine(prediction, target).mean()


@in_float32
def nt_xent(z1: Tensor, z2: Tensor, temperature: float, negatives: Tensor | None = None) -> Tensor:
    """SimCLR: cross entropy of finding the other view among the 2B − 1 other projections of the batch.

    `negatives`: further ones, normalised, that every projection is also told apart from (FedCA's dictionary).
    """
    z = F.normalize(torch.cat([z1, z2]), dim=1)  # 2B x d
    similarity = z @ z.T / temperature  # 2B x 2B
    similarity.fill_diagonal_(float("-inf"))  # an image is not its own negative
    count = z1.shape[0]
    other_view = torch.arange(2 * count, device=z.device).roll(count)  # 2B
    if negatives is not None and len(negatives):
        similarity = torch.cat([similarity, z @ negatives.T / temperature], dim=1)  # 2B x (2B + D)
    return F.cross_entropy(similarity, other_view)


@in_float32
def info_nce(query: Tensor, key: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """MoCo: cross entropy of finding the key of the same image among it and the queue; all vectors normalised."""
    positive = (query * key).sum(dim=1, keepdim=True)  # B x 1
    negative = query @ queue.T  # B x Q
    logits = torch.cat([positive, negative], dim=1) / temperature  # B x (1 + Q)
    return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long, device=query.device))


@in_float32
def alignment(projection: Tensor, base: Tensor) -> Tensor:
    """FedCA: mean_i ‖z_i / ‖z_i‖ − b_i‖², b normalised."""
    return (F.normalize(projection, dim=1) - base).square().sum(dim=1).mean()
