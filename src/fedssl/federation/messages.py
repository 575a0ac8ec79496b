"""What travels between server and clients, and what never does."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from fedssl.weights import Weights

Scalars = dict[str, float]
Payload = dict[str, Tensor]
StepWatcher = Callable[[int, int, int, int], None]
"""Called with (client_id, steps done, steps in all, images done) while a client trains; counts only, no host sync."""


@dataclass(frozen=True)
class GlobalWeights:
    """W_g and W_g^p; also what a client uploads: one encoder and its predictor, nothing else."""

    encoder: Weights
    predictor: Weights

    def num_bytes(self) -> int:
        return self.encoder.num_bytes() + self.predictor.num_bytes()


@dataclass(frozen=True)
class ClientWeights:
    """W_k, W_k^p and W_k^t; the target is empty for methods that have none."""

    online: Weights
    predictor: Weights
    target: Weights


@dataclass(frozen=True)
class ClientState:
    """What a client keeps from round to round; it never leaves the client."""

    weights: ClientWeights
    last_round: int
    memory: dict[str, Tensor] = field(default_factory=dict)  # e.g. MoCo's queue
    scalars: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class TrainTask:
    """Down: the global weights, what the server noted for this client (FedEMA's lambda_k), a method's own payload."""

    client_id: int
    round_number: int  # 1 … R; round 0 is the initial model
    accepted_round: int | None  # the last round of this client that the server took into its average
    global_weights: GlobalWeights
    note: Scalars = field(default_factory=dict)
    payload: Payload = field(default_factory=dict)

    def num_bytes(self) -> int:
        return self.global_weights.num_bytes() + payload_bytes(self.payload)


@dataclass(frozen=True)
class TrainResult:
    """Up: the trained online encoder and predictor, n_k, numbers to record, a method's own payload."""

    client_id: int
    round_number: int
    weights: GlobalWeights
    num_examples: int
    scalars: Scalars = field(default_factory=dict)
    payload: Payload = field(default_factory=dict)

    def num_bytes(self) -> int:
        return self.weights.num_bytes() + payload_bytes(self.payload)


def payload_bytes(payload: Payload) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in payload.values())
