"""Operation 3, model aggregation: from this round's uploads to the new global weights."""

from collections.abc import Sequence
from typing import Protocol

from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.weights import average


class Aggregator(Protocol):
    def __call__(self, results: Sequence[TrainResult]) -> GlobalWeights: ...


def weighted_average(results: Sequence[TrainResult]) -> GlobalWeights:
    """W_g = sum_k (n_k / n) W_k over this round's clients; same for the predictor, BatchNorm statistics included."""
    ordered = sorted(results, key=lambda result: result.client_id)  # float sums depend on the order
    return GlobalWeights(
        encoder=average([(result.num_examples, result.weights.encoder) for result in ordered]),
        predictor=average([(result.num_examples, result.weights.predictor) for result in ordered]),
    )


AGGREGATORS: dict[str, Aggregator] = {"weighted-average": weighted_average}
