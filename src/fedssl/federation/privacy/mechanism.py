"""Client-level differential privacy: updates of bounded length, and Gaussian noise on their sum or on each of them.

What is protected is the sequence of global weights, and all that is made of them, against the question whether one
client's updates were there or were zero. A client's update is what it sends minus what it received, parameters only.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from fedssl.core.registry import Registry
from fedssl.core.settings import Count, NonNegative, Positive
from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, joined, parted
from fedssl.federation.model_aggregation.coordinates import distance

Delta = Annotated[float, Interval(gt=0, lt=1)]
KEY = "noise-key"  # of a client that adds its own noise: in its state, which never leaves it
KEY_BYTES = 32
AT_ONCE = 2**16  # values of noise that are drawn together, an even number


@dataclass(frozen=True, kw_only=True)
class ClientDP:
    """Updates of length clip_norm at most, noise of standard deviation noise_multiplier · clip_norm, equal weights.

    placement "central": on the sum, by a server that is trusted with single updates; "local": on every upload, before
    it leaves; "distributed": on every upload a share, so that the sum has the noise of "central" though nobody is
    trusted (needs aggregation.secure). `honest`: clients of a sum that are counted on to add theirs. noise_seed "run"
    repeats a run bit for bit and hides nothing from those who know the seed.
    """

    clip_norm: Positive
    noise_multiplier: NonNegative
    delta: Delta = 1e-5
    placement: Literal["central", "local", "distributed"] = "central"
    noise_seed: Literal["secret", "run"] = "secret"
    honest: Count | None = None  # of "distributed"; default: as many as a sum has at least

    @property
    def at_clients(self) -> bool:
        """Whether clients add noise before anything leaves them."""
        return self.placement != "central"

    @property
    def needs_sum(self) -> bool:
        """Whether a client's own noise is too little for a single upload: it hides in a secure sum only."""
        return self.placement == "distributed"

    def hides(self, required: str) -> bool:
        """Whether it hides an upload at least as well as this placement; what is no placement asks for nothing."""
        order = ("central", "distributed", "local")
        return required not in order or order.index(self.placement) >= order.index(required)

    def round_key(self, key: bytes, round_number: int) -> bytes:
        """Another in every round: the same update twice gets other noise; a key that is no secret stays as it is."""
        return key if self.noise_seed == "run" else hashlib.sha256(key + f" round {round_number}".encode()).digest()

    def deviation(self, clients: int) -> float:
        """Of the noise that one of so many clients adds; of "distributed" their squares add up to that of "central"."""
        shares = {"central": 0.0, "local": 1.0, "distributed": 1 / math.sqrt(clients)}
        return self.noise_multiplier * self.clip_norm * shares[self.placement]

    def protect(self, sent: GlobalWeights, received: GlobalWeights, key: bytes, clients: int = 1) -> GlobalWeights:
        """Client side, of so many: what may leave; buffers that would travel are sent back as they came."""
        trained, origin = joined(sent), joined(received)
        update = _clipped(trained, origin, self.clip_norm)
        add_noise(update, self.deviation(clients), key)
        moved = {name: origin.parameters[name] + step for name, step in update.items()}
        return parted(Weights(moved, {name: tensor.clone() for name, tensor in origin.buffers.items()}))


def no_privacy() -> None:
    """Weights are sent and averaged as they are."""


PRIVACY: Registry[Callable[..., ClientDP | None]] = Registry(
    "privacy", "privacy.name", {"none": no_privacy, "client-dp": ClientDP}
)


@dataclass(frozen=True, kw_only=True)
class PrivateAverage(Aggregator):
    """W_g + (sum_k clipped(W_k − W_g) + noise) / m with m the clients that were asked, whatever came back.

    n_k is ignored: a weight that depends on the data would have no bounded effect. Holds one upload at a time.
    """

    privacy: ClientDP
    sampled: int
    key: bytes = field(default=b"", repr=False)  # never in a log

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:
        central, total = not self.privacy.at_clients, dict[str, Tensor]()
        bound = self.privacy.clip_norm if central else math.inf  # an upload that holds noise may be of any length
        for result in results:
            update = _clipped(joined(result.weights), previous, bound)
            for name, step in update.items():
                total[name] = step if name not in total else total[name].add_(step)
        if central:
            key = self.privacy.round_key(self.key, results[0].round_number)
            add_noise(total, self.privacy.noise_multiplier * self.privacy.clip_norm, key)
        moved = {name: previous.parameters[name] + step.div_(self.sampled) for name, step in total.items()}
        return Weights(moved, previous.buffers)


def _clipped(trained: Weights, origin: Weights, bound: float) -> dict[str, Tensor]:
    """W − W_g over the parameters, made shorter than `bound` where it is longer."""
    length = distance(trained.parameters, origin)
    by = 1.0 if length <= bound else bound / length
    return {name: (tensor - origin.parameters[name]).mul_(by) for name, tensor in trained.parameters.items()}


def add_noise(update: dict[str, Tensor], deviation: float, key: bytes) -> None:
    """Adds N(0, deviation²) to every value, in place.

    The same key and update give the same noise, so that a round which is repeated after a stop says nothing new;
    another update gets other noise, so that the difference of two says nothing either.
    """
    if deviation == 0:
        return
    about = Weights(update).digest()
    for name, tensor in sorted(update.items()):
        flat = tensor.view(-1)
        for start in range(0, flat.numel(), AT_ONCE):
            part = flat[start : start + AT_ONCE]
            noise = gaussian(key, f"{about} {name} {start}", len(part))
            part.add_(torch.from_numpy(noise * deviation).to(part.dtype))


def gaussian(key: bytes, name: str, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Standard normal numbers from a keyed extendable hash: who sees some cannot tell the others (Box & Muller, 1958).

    Generators made for simulation do not promise that.
    """
    pairs = -(-count // 2)
    stream = hashlib.shake_256(key + b"\x00" + name.encode()).digest(16 * pairs)
    uniform = ((np.frombuffer(stream, "<u8") >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1)
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def run_key(seed: int, *names: int) -> bytes:
    """The key of the noise with noise_seed = "run": known to whoever knows the seed."""
    return hashlib.sha256(f"noise of run {seed} {names}".encode()).digest()
