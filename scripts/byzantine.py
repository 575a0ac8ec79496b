"""Attackers among the clients of an experiment: their uploads are falsified before an aggregator sees them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedssl.core.settings import Count, settings_of
from fedssl.core.weights import Weights
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_aggregation.base import Aggregator, joined, parted


@dataclass(frozen=True, kw_only=True)
class Attacked(Aggregator):
    """The first clients send −`factor` times their update; `aggregator` is told to tolerate as many.

    Only parameters are falsified: the server refuses BatchNorm statistics that cannot be (negative variances).
    """

    aggregator: str = "weighted-average"
    attackers: Count = 2
    factor: float = 10.0

    def check(self, num_clients: int) -> None:
        self._behind().check(num_clients)

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:
        sent = [self._falsified(one, previous) if one.client_id < self.attackers else one for one in results]
        return self._behind().combine(sent, previous)

    def _behind(self) -> Aggregator:
        behind = AGGREGATORS[self.aggregator]
        tolerated = [name for name in settings_of(behind) if name in ("trim", "byzantine")]
        return behind(**dict.fromkeys(tolerated, self.attackers))

    def _falsified(self, result: TrainResult, previous: Weights) -> TrainResult:
        def turn(name: str, tensor: Tensor) -> Tensor:
            start = previous.parameters.get(name)
            return tensor if start is None else start - self.factor * (tensor - start)

        return replace(result, upload=parted(joined(result.weights).map(turn)))
