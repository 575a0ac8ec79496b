"""What of a client's round goes into a secure sum, and what the sum says: fixed before round 1, known to all."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights, Scalars
from fedssl.federation.model_aggregation.base import joined, parted
from fedssl.federation.secure.fixed_point import Layout, Vector, decode, encode, layout_of
from fedssl.federation.secure.stages import check_threshold

# Of the numbers that clients add for the record, the largest: what is beyond it counts as this much.
LIMITS = {
    "loss": 1e4,
    "ema": 1.0,
    "mu": 1.0,
    "divergence": 1e4,
    "feature_std": 1e2,
    "images": 1e8,
    "seconds": 1e5,
    "core_seconds": 1e6,
}
COUNT = "_count"  # after a number's name: how many clients have one
TAIL = 12.0  # deviations beyond which noise does not come: once in 10^32 values
SAFE_STEPS = 100.0  # of a deviation: then rounding to steps changes nothing that could be told from the noise
VECTOR = "vector"  # a client's part of the sum, as it is kept and travels


@dataclass(frozen=True)
class Summed:
    """What a secure sum says: the new global weights, how many images, and each number's sum and count."""

    weights: GlobalWeights
    num_examples: int
    sums: Scalars

    def mean(self, name: str) -> float | None:
        """Over the clients that had such a number; None: none had."""
        count = round(self.sums.get(name + COUNT, 0))
        return self.sums[name] / count if count else None


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The layout of the vectors, how many clients a sum needs, and by what it is divided."""

    layout: Layout
    threshold: int
    numbers: tuple[str, ...]
    settings: str  # a digest of those that all clients must have in common
    equal: bool = False  # every client counts the same and the sum is divided by those asked, as noise asks for

    @property
    def clients(self) -> int:
        """Those of a round."""
        return self.layout.clients

    @property
    def num_bytes(self) -> int:
        return 4 * self.layout.length

    def text(self) -> str:
        layout, least = self.layout, self.threshold
        return (
            f"secure aggregation: the server learns sums of {least} or more of the {self.clients} clients of a round, "
            f"and of no single one anything; changes of weights up to {layout.tensors[0].limit:g} in steps of "
            f"{layout.step(layout.tensors[0]):.2g}"
        )

    def part(self, trained: GlobalWeights, origin: GlobalWeights, examples: int, reported: Scalars) -> GlobalWeights:
        """A client's part of the sum: a vector of 32-bit numbers, not masked yet."""
        sums = {name: min(max(reported.get(name, 0.0), -LIMITS[name]), LIMITS[name]) for name in self.numbers}
        counts = {name + COUNT: float(name in reported) for name in self.numbers}
        count = 1 if self.equal else examples
        return packed(encode(self.layout, joined(trained), joined(origin), count, sums | counts))

    def read(self, total: Vector, origin: GlobalWeights) -> Summed:
        decoded = decode(self.layout, total, joined(origin), self.clients if self.equal else None)
        # A step below 0 would be NaN behind the next BatchNorm.
        weights = decoded.weights.map(lambda name, t: t.clamp(min=0) if name.endswith("running_var") else t)
        return Summed(parted(weights), decoded.num_examples, decoded.sums)


def packed(vector: Vector) -> GlobalWeights:
    """A vector as weights, which every engine can carry."""
    return GlobalWeights(Weights({VECTOR: torch.from_numpy(vector.view(np.int32))}), Weights())


def unpacked(weights: GlobalWeights) -> Vector:
    """The vector in weights that `packed` made, in memory of its own."""
    vector: Vector = weights.encoder.parameters[VECTOR].numpy().view(np.uint32).copy()
    return vector


def make_terms(
    like: GlobalWeights,
    numbers: Iterable[str],
    *,
    settings: str = "",
    clients: int,
    threshold: int | None,
    most_examples: int | None,
    limit: float,
    statistics_limit: float,
    clip_norm: float | None = None,
    deviation: float = 0.0,
) -> Terms:
    """For `clients` a round; `clip_norm` and `deviation` of the noise where every client adds some."""
    needed = check_threshold(clients, threshold)
    if clip_norm is not None:
        most_examples, limit = 1, clip_norm + TAIL * deviation
    if most_examples is None:
        raise FedsslError(
            "aggregation.secure_max_examples: must be given where images are at their sites: no client may have more"
        )
    known = tuple(sorted(set(numbers) & LIMITS.keys()))
    sums: dict[str, float | None] = {name: LIMITS[name] for name in known}
    counts: dict[str, float | None] = dict.fromkeys((name + COUNT for name in known), None)
    layout = layout_of(joined(like), clients, most_examples, limit, statistics_limit, sums | counts)
    if 0 < deviation < SAFE_STEPS * layout.step(layout.tensors[0]):
        raise FedsslError(
            "privacy.noise_multiplier: the noise of a client is too small beside the step of secure aggregation "
            f"({layout.step(layout.tensors[0]):.3g}): it would not hide what rounding shows"
        )
    return Terms(layout=layout, threshold=needed, numbers=known, settings=settings, equal=clip_norm is not None)
