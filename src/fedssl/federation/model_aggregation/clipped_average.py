"""The average of updates of bounded length."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedssl.core.settings import Positive
from fedssl.core.weights import Average, Weights
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, joined
from fedssl.federation.model_aggregation.coordinates import by_coordinate, distance, middle


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

    departs = (
        "BatchNorm statistics are clipped apart from parameters, at the median of their own lengths; variances "
        "stay at 0 or above; counters take the median"
    )

    max_norm: Positive | None = None

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:
        lengths = [_lengths(joined(result.weights), previous) for result in results]
        bound = median(one.parameters for one in lengths) if self.max_norm is None else self.max_norm
        statistics_bound = median(one.statistics for one in lengths)
        mean = Average(sum(result.num_examples for result in results))
        for result, one in zip(results, lengths, strict=True):
            scale, statistics_scale = _scale(one.parameters, bound), _scale(one.statistics, statistics_bound)
            mean.add(result.num_examples, _shortened(joined(result.weights), previous, scale, statistics_scale))
        counters = by_coordinate([Weights(buffers=one.counters) for one in lengths], middle)
        return mean.weights().overlaid(counters).map(_no_negative_variance)


def _lengths(upload: Weights, previous: Weights) -> _Lengths:
    floating = {name: tensor for name, tensor in upload.buffers.items() if tensor.is_floating_point()}
    # Copies: a tensor that came from a file would keep all of the upload in memory.
    counters = {name: tensor.clone() for name, tensor in upload.buffers.items() if name not in floating}
    return _Lengths(distance(upload.parameters, previous), distance(floating, previous), counters)


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
