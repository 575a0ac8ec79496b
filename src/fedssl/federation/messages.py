"""What travels between server and clients, and what never does."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, Protocol, Self

from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.sealed import named_tensors, named_weights
from fedssl.core.weights import Weights

Scalars = dict[str, float]
Payload = dict[str, Tensor]


@dataclass(frozen=True)
class GlobalWeights:
    """W_g and W_g^p; also what a client uploads: one encoder and its predictor, nothing else."""

    encoder: Weights
    predictor: Weights
    EMPTY: ClassVar["GlobalWeights"]

    def named(self) -> dict[str, Tensor]:
        """All tensors in one table, as files and messages hold them: encoder/parameters/…, predictor/buffers/…."""
        return named_tensors("encoder", self.encoder) | named_tensors("predictor", self.predictor)

    @classmethod
    def from_named(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The weights in a table that `named` made; what else is in it is left aside."""
        return cls(named_weights("encoder", tensors), named_weights("predictor", tensors))

    def num_bytes(self) -> int:
        return self.encoder.num_bytes() + self.predictor.num_bytes()

    def read(self) -> Self:
        return self

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all tensors; made once, however many tasks carry these weights."""
        return hashlib.sha256(f"{self.encoder.digest()} {self.predictor.digest()}".encode()).hexdigest()


GlobalWeights.EMPTY = GlobalWeights(Weights(), Weights())


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


EVALUATE = b"evaluate "  # how a stage begins that is no part of training; after it may follow one of a secure sum


@dataclass(frozen=True)
class TrainTask:
    """Down: the global weights, what the server noted for this client (FedEMA's lambda_k), a method's own payload."""

    client_id: int
    round_number: int  # 1 … R; round 0 is the initial model
    _: KW_ONLY
    accepted_round: int | None = None  # the last round of this client that the server took into its average
    global_weights: GlobalWeights
    note: Scalars = field(default_factory=dict)
    payload: Payload = field(default_factory=dict)
    stage: bytes = field(default=b"", repr=False)  # of a secure sum: what the server says; answered instead of training
    room: int | None = None  # bytes that the answer's weights may take; default: as many as these here

    def num_bytes(self) -> int:
        return self.global_weights.num_bytes() + payload_bytes(self.payload) + len(self.stage)

    @property
    def evaluates(self) -> bool:
        """Whether it asks how good its weights are, those of the round before."""
        return self.stage.startswith(EVALUATE)

    @property
    def of_round(self) -> int:
        """The round whose work it is: its own, or that of the weights it asks about."""
        return self.round_number - self.evaluates

    @property
    def answer_bytes(self) -> int:
        """The most that the weights in its answer may take."""
        return self.global_weights.num_bytes() if self.room is None else self.room

    def digest(self) -> str:
        """Two tasks with the same digest ask for the same training."""
        about = [self.client_id, self.round_number, self.accepted_round, sorted(self.note.items())]
        parts = [json.dumps(about), self.global_weights.digest, Weights(self.payload).digest()]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


class Upload(Protocol):
    """The weights that a client sent: in memory, or where an engine on the same machine left them."""

    def read(self) -> GlobalWeights: ...
    def num_bytes(self) -> int: ...


@dataclass(frozen=True)
class TrainResult:
    """Up: the trained online encoder and predictor, n_k, numbers to record, a method's own payload."""

    client_id: int
    round_number: int
    upload: Upload
    _: KW_ONLY
    num_examples: int
    scalars: Scalars = field(default_factory=dict)
    payload: Payload = field(default_factory=dict)
    profile: Scalars = field(default_factory=dict)  # seconds by part, when a run asks for them
    stage: bytes = field(default=b"", repr=False)  # of a secure sum: what the client says

    @property
    def weights(self) -> GlobalWeights:
        """Read anew at every use: do not keep those of many clients, and the server never holds K models."""
        return self.upload.read()

    def num_bytes(self) -> int:
        return self.upload.num_bytes() + payload_bytes(self.payload) + len(self.stage)


FailureCode = Literal[
    "exception",  # the client's code raised
    "non-finite",  # its loss or weights became NaN or infinite
    "timeout",  # it took longer than failures.client_timeout
    "state-damaged",  # its own state on disk cannot be used
    "disk",  # its own disk refused
    "refused",  # it will not or cannot do this task: its own log says why
    "approval",  # not yet: a person at the site has to approve the run
    "closed",  # not now: the site takes tasks at other hours
    "left",  # the site takes no part in this run any more, or until it joins again
    "untrusted",  # it will not go on: another site's key is not the one that it trusts
    "no-reply",  # nothing came back
    "rejected",  # what it sent is not what a client of this run may send
    "duplicate",  # it sent more than one reply; the first counts
    "wrong-round",  # a reply to another round's task
    "not-asked",  # a reply from a client that had no task
]


LATER: tuple[FailureCode, ...] = ("approval", "closed")  # the same task may be taken after a while


@dataclass(frozen=True)
class Failure:
    """A reply that gives nothing: the code may travel; detail and trace stay on the machine where it happened."""

    client_id: int
    round_number: int
    code: FailureCode
    _: KW_ONLY
    detail: str = ""
    trace: str = ""
    shared: str = ""  # what a site lets the server know of the reason

    def __str__(self) -> str:
        return self.described(f"client {self.client_id}")

    def named(self, name: str) -> Self:
        """With its client's name, where it has one and nobody has said it yet."""
        known = not name or self.detail.startswith(f"{name}: ")
        return self if known else replace(self, detail=f"{name}: {self.detail}".removesuffix(": "))

    def described(self, client: str) -> str:
        """In words, with the client's title."""
        return f"{client}: {self.code}" + (f" ({self.detail})" if self.detail else "")


class ClientError(FedsslError):
    """What a client raises when it knows which kind of failure it met."""

    def __init__(self, code: FailureCode, text: str, shared: str = "") -> None:
        super().__init__(text)
        self.code, self.shared = code, shared


def payload_bytes(payload: Payload) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in payload.values())
