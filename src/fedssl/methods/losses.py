"""The losses of the self-supervised methods, written as the papers' formulas."""

import math
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


@in_float32
def uniformity(z: Tensor, sharpness: float) -> Tensor:
    """log mean_{i≠j} exp(−t ‖z_i − z_j‖²) of the normalised z: low when they spread over the sphere (t: sharpness)."""
    z = F.normalize(z, dim=1)  # B x d
    count = z.shape[0]
    potential = sharpness * (2 * z @ z.T - 2)  # B x B: −t ‖z_i − z_j‖²
    potential.fill_diagonal_(float("-inf"))
    return potential.flatten().logsumexp(dim=0) - math.log(count * (count - 1))


@in_float32
def vicreg_loss(z1: Tensor, z2: Tensor, invariance: float, variance: float, covariance: float) -> Tensor:
    """VICReg: views alike, every dimension with a deviation of at least 1, no two dimensions correlated.

    λ mean (z1 − z2)² + μ Σ_views mean_j relu(1 − sqrt(var_j + 1e-4)) / 2 + ν Σ_views Σ_{i≠j} cov_ij² / d
    """
    spread = correlated = torch.zeros((), device=z1.device)
    for z in (z1, z2):
        centred = z - z.mean(dim=0)  # B x d
        covariances = centred.T @ centred / (len(z) - 1)  # d x d
        spread = spread + F.relu(1 - (covariances.diagonal() + 1e-4).sqrt()).mean() / 2
        correlated = correlated + _off_diagonal(covariances).square().sum() / z.shape[1]
    return invariance * F.mse_loss(z1, z2) + variance * spread + covariance * correlated


@in_float32
def barlow_loss(z1: Tensor, z2: Tensor, redundancy: float) -> Tensor:
    """Barlow Twins: Σ_i (1 − C_ii)² + λ Σ_{i≠j} C_ij², C = z1ᵀ z2 / N of standardised columns."""
    correlation = _standardised(z1).T @ _standardised(z2) / len(z1)  # d x d
    alike = (1 - correlation.diagonal()).square().sum()
    return alike + redundancy * _off_diagonal(correlation).square().sum()


def _standardised(z: Tensor) -> Tensor:
    """Every column with mean 0 and deviation 1, as a BatchNorm without weights."""
    return F.batch_norm(z, None, None, training=True)  # N x d


def _off_diagonal(square: Tensor) -> Tensor:
    """The d (d − 1) elements beside the diagonal: each row of d + 1 begins with one of the diagonal."""
    size = len(square)
    return square.flatten()[:-1].view(size - 1, size + 1)[:, 1:]


@in_float32
def dino_loss(student: Tensor, teacher: Tensor, centre: Tensor, student_heat: float, teacher_heat: float) -> Tensor:
    """DINO: mean over pairs of different views and over images of −Σ_k softmax((t − c) / τ_t)_k log softmax(s / τ_s)_k.

    The student has seen V views, the teacher the first G of them.
    """
    targets = F.softmax((teacher - centre) / teacher_heat, dim=2)  # G x B x K
    logs = F.log_softmax(student / student_heat, dim=2)  # V x B x K
    pairs = -targets.flatten(1) @ logs.flatten(1).T / targets.shape[1]  # G x V
    same = torch.eye(*pairs.shape, device=pairs.device)
    return (pairs * (1 - same)).sum() / (pairs.numel() - len(pairs))


@in_float32
def masked_patch_loss(predicted: Tensor, patches: Tensor) -> Tensor:
    """Masked autoencoder: mean squared error to pixels, each patch's brought to mean 0 and deviation 1."""
    variance, mean = torch.var_mean(patches, dim=2, keepdim=True)  # B x M x 1
    return F.mse_loss(predicted, (patches - mean) / (variance + 1e-6).sqrt())  # B x M x P


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
