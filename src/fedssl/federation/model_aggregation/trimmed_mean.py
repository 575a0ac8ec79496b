"""The mean of every coordinate without its largest and smallest values."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fedssl.core.settings import Count
from fedssl.core.weights import Weights
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, joined, need
from fedssl.federation.model_aggregation.coordinates import by_coordinate, inner_mean


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Aggregator):
    """The mean, coordinate by coordinate, without the `trim` largest and smallest; n_k ignored (Yin et al., 2018).

    Tolerates up to `trim` Byzantine clients. Reads every upload once and needs all of them at the same time: K models,
    which cost little memory where tensors are mapped from files.
    """

    departs = "on weights, not gradients; n_k, which a client states itself, is ignored"

    trim: Count = 1

    def check(self, num_clients: int) -> None:
        need(2 * self.trim + 1, num_clients, f"trim = {self.trim}")

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:  # noqa: ARG002
        return by_coordinate([joined(result.weights) for result in results], partial(inner_mean, trim=self.trim))
