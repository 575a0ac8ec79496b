"""The paper's aggregation: the average of the uploads, weighted by the number of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedssl.core.weights import Average, Weights
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, joined


@dataclass(frozen=True, kw_only=True)
class WeightedAverage(Aggregator):
    """W_g = sum_k (n_k / n) W_k, same for predictor and BatchNorm statistics (the paper's); one bad client ruins it.

    Reads every upload once and holds one at a time.
    """

    needs_single_uploads: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:  # noqa: ARG002
        mean = Average(sum(result.num_examples for result in results))
        for result in results:
            mean.add(result.num_examples, joined(result.weights))
        return mean.weights()
