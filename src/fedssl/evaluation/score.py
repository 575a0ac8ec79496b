"""How many test images were named rightly, and how sure that makes one of the accuracy."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

Z_95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Score:
    """`correct` of `n` test images: accuracy is over images, never a mean over batches."""

    correct: int
    n: int

    @classmethod
    def of(cls, predictions: Tensor, labels: Tensor) -> "Score":
        return cls(int((predictions == labels).sum()), len(labels))

    @property
    def accuracy(self) -> float:
        return self.correct / self.n

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.correct, self.n)


def wilson_interval(correct: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """The Wilson score interval: which true accuracies would make this count of n images plausible (95 %)."""
    share = correct / n
    centre = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return max((centre - half) / scale, 0.0), min((centre + half) / scale, 1.0)


def mean_and_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation of a sample; one value has no spread."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
