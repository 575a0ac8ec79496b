"""The losses of the self-supervised methods, written as the papers' formulas."""

import math
from collections.abc import Callable
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


@in_float32
def uniformity(z: Tensor, sharpness: float) -> Tensor:
    """log mean_{i≠j} exp(−t ‖z_i − z_j‖²) of the normalised z: low when they spread over the sphere (t: sharpness)."""
    z = F.normalize(z, dim=1)  # B x d
    count = z.shape[0]
    potential = sharpness * (2 * z @ z.T - 2)  # B x B: −t ‖z_i − z_j‖²
    potential.fill_diagonal_(float("-inf"))
    return torch.logsumexp(potential.flatten(), dim=0) - math.log(count * (count - 1))


@in_float32
def ssd_separation(z: Tensor, scaling: Tensor) -> Tensor:
    """SSD: mean_i ‖z_i − sg(z_i ⊙ d_k)‖², z normalised."""
    z = F.normalize(z, dim=1)
    return (z - z.detach() * scaling).square().sum(dim=1).mean()


@in_float32
def ssd_separation_authors(z: Tensor, scaling: Tensor) -> Tensor:
    """SSD: ‖Z − sg(norm(Z ⊙ d_k))‖ / B, one norm over the batch."""
    z = F.normalize(z, dim=1)
    distance: Tensor = torch.linalg.vector_norm(z - F.normalize(z.detach() * scaling, dim=1))
    return distance / len(z)


@in_float32
def kl_divergence(of: Tensor, to: Tensor) -> Tensor:
    """mean_i KL(softmax of_i ‖ softmax to_i)."""
    return F.kl_div(F.log_softmax(to, dim=1), F.log_softmax(of, dim=1), reduction="batchmean", log_target=True)


@in_float32
def relational_loss(z1: Tensor, z2: Tensor, others: Tensor, temperature: float) -> Tensor:
    """FedX: mean_i JS(r1_i, r2_i), r_i = softmax over j ≠ i of cos(z_i, others_j) / t: views see other images alike."""
    log_1, log_2 = (_relations(z, others, temperature) for z in (z1, z2))  # B x (B − 1)
    middle = torch.logaddexp(log_1, log_2) - math.log(2)
    to_1, to_2 = (F.kl_div(middle, log, reduction="batchmean", log_target=True) for log in (log_1, log_2))
    return (to_1 + to_2) / 2


def _relations(z: Tensor, others: Tensor, temperature: float) -> Tensor:
    similarity = F.normalize(z, dim=1) @ F.normalize(others, dim=1).T / temperature  # B x B
    count = len(z)
    rows = similarity.flatten()[1:].view(count - 1, count + 1)[:, :-1].reshape(count, count - 1)  # without i = j
    return F.log_softmax(rows, dim=1)


@in_float32
def shortened(z: Tensor, bound: float) -> Tensor:
    """FedSC: rows whose squared length is more than `bound` are shortened to that."""
    lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True)  # B x 1
    return z * (math.sqrt(bound) / torch.clamp(lengths, min=math.sqrt(bound)))


@in_float32
def correlation(z1: Tensor, z2: Tensor) -> Tensor:
    """FedSC: R = zᵀz / 2N of both views together."""
    return (z1.T @ z1 + z2.T @ z2) / (2 * len(z1))  # d x d


@in_float32
def spectral_loss(z1: Tensor, z2: Tensor, own: Tensor, others: Tensor, alpha: Tensor) -> Tensor:
    """FedSC: −2 tr(z1ᵀ z2) / N + a ‖R‖² + 2 (1 − a) tr(R · R̄), R the client's own, R̄ the others'."""
    attraction = (z1 * z2).sum() / len(z1)
    return -2 * attraction + alpha * own.square().sum() + 2 * (1 - alpha) * (own * others.T).sum()
