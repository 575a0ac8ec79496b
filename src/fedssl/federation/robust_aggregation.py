"""Aggregators that tolerate Byzantine clients: clipped average, median, trimmed mean, Krum."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from fedssl.core.registry import Registry
from fedssl.core.settings import Count, Positive
from fedssl.core.weights import Average, Weights, in_dtype
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation import Aggregator, WeightedAverage, joined, need

VALUES_AT_ONCE = 2**18  # what is sorted or compared in one go, over all clients: stays in the processor's cache


@dataclass(frozen=True)
class _Lengths:
    """How far an upload is from the previous global weights, and its counters, which have no length."""

    parameters: float
    statistics: float
    counters: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class ClippedAverage(Aggregator):
    """The weighted average of updates W_k − W_g shortened to `max_norm`, or to the median of the round's lengths.

    One norm over encoder and predictor. BatchNorm statistics are a group of their own, always shortened to the median
    of their lengths; counters take the median of the clients'. A bad client still pulls, but no harder than others:
    holds while most clients are sound. Reads every upload twice and holds one at a time.
    """

    max_norm: Positive | None = None

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:
        lengths = [_lengths(joined(result.weights), previous) for result in results]
        bound = median(one.parameters for one in lengths) if self.max_norm is None else self.max_norm
        statistics_bound = median(one.statistics for one in lengths)
        mean = Average(sum(result.num_examples for result in results))
        for result, one in zip(results, lengths, strict=True):
            scale, statistics_scale = _scale(one.parameters, bound), _scale(one.statistics, statistics_bound)
            mean.add(result.num_examples, _shortened(joined(result.weights), previous, scale, statistics_scale))
        counters = _by_coordinate([Weights(buffers=one.counters) for one in lengths], _middle)
        return mean.weights().overlaid(counters).map(_no_negative_variance)


def _lengths(upload: Weights, previous: Weights) -> _Lengths:
    floating = {name: tensor for name, tensor in upload.buffers.items() if tensor.is_floating_point()}
    # Copies: a tensor that came from a file would keep all of the upload in memory.
    counters = {name: tensor.clone() for name, tensor in upload.buffers.items() if name not in floating}
    return _Lengths(distance(upload.parameters, previous), distance(floating, previous), counters)


def distance(tensors: Mapping[str, Tensor], previous: Weights) -> float:
    """How far tensors are from those of the same names; in float64: the square of a large float32 would be infinite."""
    origin = previous.tensors()
    pairs = (pair.double() for name in tensors for pair in _slices([tensors[name], origin[name]]))
    return math.hypot(*(float(torch.linalg.vector_norm(to - from_)) for to, from_ in pairs))


def _scale(length: float, bound: float) -> float:
    return 1.0 if length <= bound else bound / length  # 0 for a length beyond float64: as if the client had not moved


def _shortened(upload: Weights, previous: Weights, scale: float, statistics_scale: float) -> Weights:
    origin = previous.tensors()

    def shorten(name: str, tensor: Tensor) -> Tensor:
        by = scale if name in upload.parameters else statistics_scale
        return tensor if by == 1.0 or not tensor.is_floating_point() else torch.lerp(origin[name], tensor, by)

    return upload.map(shorten)


def _no_negative_variance(name: str, tensor: Tensor) -> Tensor:
    """A short update can still push a small variance below 0, and every feature behind it would be NaN."""
    return tensor.clamp(min=0) if name.endswith("running_var") else tensor


@dataclass(frozen=True, kw_only=True)
class Median(Aggregator):
    """The middle value, coordinate by coordinate, n_k ignored (Yin et al., 2018): holds while most clients are sound.

    The mean of the two middle values when their number is even. Reads every upload once and needs all of them at the
    same time: K models, which cost little memory where tensors are mapped from files.
    """

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:  # noqa: ARG002
        return _by_coordinate([joined(result.weights) for result in results], _middle)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Aggregator):
    """The mean, coordinate by coordinate, without the `trim` largest and smallest; n_k ignored (Yin et al., 2018).

    Tolerates up to `trim` Byzantine clients. Reads every upload once and needs all of them at the same time: K models,
    which cost little memory where tensors are mapped from files.
    """

    trim: Count = 1

    def check(self, num_clients: int) -> None:
        need(2 * self.trim + 1, num_clients, f"trim = {self.trim}")

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:  # noqa: ARG002
        return _by_coordinate([joined(result.weights) for result in results], partial(_inner_mean, trim=self.trim))


@dataclass(frozen=True, kw_only=True)
class Krum(Aggregator):
    """The `selected` uploads nearest to the others, averaged; tolerates `byzantine` bad ones (Blanchard et al., 2017).

    A client's score is the sum of squared distances to its n − f − 2 nearest others, over the parameters of encoder and
    predictor; of equal scores the lower client id wins; the average is weighted by n_k. Buffers are the median over all
    clients: the score does not see them, so a client chosen for its parameters could poison through them. Reads every
    upload once and needs all of them at the same time (K models, little memory where tensors are mapped from files);
    time grows with K².
    """

    byzantine: Count = 1
    selected: Count = 1

    def check(self, num_clients: int) -> None:
        need(2 * self.byzantine + 3, num_clients, f"byzantine = {self.byzantine}")
        # More than n − f: then some of the f would be averaged in for certain.
        need(self.selected + self.byzantine, num_clients, f"selected = {self.selected}")

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:  # noqa: ARG002
        uploads = [joined(result.weights) for result in results]
        scores = self._scores(_squared_distances(uploads))
        chosen = sorted(sorted(range(len(scores)), key=scores.__getitem__)[: self.selected])
        mean = Average(sum(results[k].num_examples for k in chosen))
        for k in chosen:
            mean.add(results[k].num_examples, uploads[k])
        return mean.weights().overlaid(_by_coordinate([Weights(buffers=one.buffers) for one in uploads], _middle))

    def _scores(self, distances: Tensor) -> list[float]:
        nearest = len(distances) - self.byzantine - 2
        rows = [row[:k] + row[k + 1 :] for k, row in enumerate(distances.tolist())]
        return [sum(sorted(row)[:nearest]) for row in rows]


def _squared_distances(uploads: Sequence[Weights]) -> Tensor:
    """K x K, over the parameters; in float64: the square of a large float32 would be infinite."""
    distances = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    for name in uploads[0].parameters:
        for values in _slices([upload.parameters[name] for upload in uploads]):
            exact = values.double()
            for k in range(len(uploads) - 1):
                distances[k, k + 1 :] += (exact[k + 1 :] - exact[k]).square().sum(dim=1)
    return distances + distances.T


def _by_coordinate(uploads: Sequence[Weights], pick: Callable[[Tensor], Tensor]) -> Weights:
    """For every coordinate, what `pick` makes of the clients' values, given in rising order along dimension 0."""
    named = [upload.tensors() for upload in uploads]

    def combine(name: str, first: Tensor) -> Tensor:
        picked = [pick(_in_order(values)) for values in _slices([tensors[name] for tensors in named])]
        return torch.cat(picked).reshape(first.shape)

    return uploads[0].map(combine)


def _slices(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The clients' versions of one tensor as rows of a K x … matrix, cut so that none is large."""
    width = max(VALUES_AT_ONCE // len(tensors), 1)
    for rows in zip(*(torch.split(tensor.reshape(-1), width) for tensor in tensors), strict=True):
        yield torch.stack(rows)


def _in_order(values: Tensor) -> Tensor:
    """Sorted by numpy, which is several times faster at this; bfloat16, which it lacks, fits into float32."""
    known = values.float() if values.dtype == torch.bfloat16 else values
    return torch.from_numpy(np.sort(known.numpy(), axis=0)).to(values.dtype)


def _middle(ordered: Tensor) -> Tensor:
    """The median is the mean of the one or two that are left when all others are trimmed."""
    return _inner_mean(ordered, (len(ordered) - 1) // 2)


def _inner_mean(ordered: Tensor, trim: int) -> Tensor:
    kept = ordered[trim : len(ordered) - trim]
    mean = in_dtype(kept.double().mean(dim=0), kept.dtype)
    return mean.maximum(kept[0]).minimum(kept[-1])  # rounding or overflow may not lead out of what was kept


AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "aggregators",
    "aggregation.name",
    {
        "weighted-average": WeightedAverage,
        "clipped-average": ClippedAverage,
        "median": Median,
        "trimmed-mean": TrimmedMean,
        "krum": Krum,
    },
    Aggregator,
)
