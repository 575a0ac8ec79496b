"""The contract of an aggregator: from this round's uploads to the new global weights."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.sealed import under
from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights, TrainResult

Memory = dict[str, Tensor]
"""What an aggregator remembers from round to round, by name; it is part of the server's state and its checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Aggregator(ABC):
    """What the server makes of a round's uploads. A frozen dataclass: its fields are its settings.

    `result.weights` may be read from disk each time it is asked for: an aggregator asks as seldom as it can.
    """

    departs: ClassVar[str] = ""  # where it is not as its own paper has it; the documentation lists it
    needs_single_uploads: ClassVar[bool] = True  # False: the sum of n_k · W_k is enough, as secure aggregation gives it
    bounded: ClassVar[bool] = False  # True: a mean, in which privacy can bound what one client does to the result

    def __call__(self, results: Sequence[TrainResult], previous: GlobalWeights) -> GlobalWeights:
        """The new global weights, given those the clients started from; replies in any order give the same bits."""
        self.check(len(results))
        ordered = sorted(results, key=lambda result: result.client_id)  # float sums depend on the order
        return parted(self.combine(ordered, joined(previous)))

    def advance(
        self,
        results: Sequence[TrainResult],
        previous: GlobalWeights,
        memory: Memory,  # noqa: ARG002
    ) -> tuple[GlobalWeights, Memory]:
        """The same, and what it will get as `memory` in the next round: nothing, unless an aggregator overrides this.

        `memory` is empty in the first round, and must not be changed in place.
        """
        return self(results, previous), {}

    def check(self, num_clients: int) -> None:
        """Refuses a round in which only so many clients deliver."""
        need(1, num_clients, "name")

    @abstractmethod
    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:
        """The same for encoder and predictor as one set, with the results in the order of their clients."""


def need(needed: int, num_clients: int, setting: str) -> None:
    if num_clients < needed:
        raise FedsslError(
            f"aggregation.{setting} needs {needed} or more clients in a round, there are {num_clients}: "
            "take more clients, a smaller value or another aggregation.name"
        )


def joined(weights: GlobalWeights) -> Weights:
    """Encoder and predictor as one set, so that a norm or a distance is over both."""
    parts = {"encoder": weights.encoder, "predictor": weights.predictor}
    return Weights(
        {f"{part}.{name}": tensor for part, of in parts.items() for name, tensor in of.parameters.items()},
        {f"{part}.{name}": tensor for part, of in parts.items() for name, tensor in of.buffers.items()},
    )


def parted(joined: Weights) -> GlobalWeights:
    """Encoder and predictor again, from the set that `joined` made of them."""

    def part(prefix: str) -> Weights:
        return Weights(under(prefix, joined.parameters), under(prefix, joined.buffers))

    return GlobalWeights(encoder=part("encoder."), predictor=part("predictor."))
