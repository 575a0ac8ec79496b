"""The middle value of every coordinate."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedssl.core.weights import Weights
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, joined
from fedssl.federation.model_aggregation.coordinates import by_coordinate, middle


@dataclass(frozen=True, kw_only=True)
class Median(Aggregator):
    """The middle value, coordinate by coordinate, n_k ignored (Yin et al., 2018): holds while most clients are sound.

    The mean of the two middle values when their number is even. Reads every upload once and needs all of them at the
    same time: K models, which cost little memory where tensors are mapped from files.
    """

    departs = "on weights, not gradients; n_k, which a client states itself, is ignored"

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:  # noqa: ARG002
        return by_coordinate([joined(result.weights) for result in results], middle)
