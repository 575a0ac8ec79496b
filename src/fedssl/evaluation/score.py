"""How many test images were classified correctly, how sure that makes one of the accuracy, and of a gain in it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # lists of runs use this module too, and need no torch
    from torch import Tensor

Z_95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Score:
    """`correct` of `n` test images: accuracy is over images, never a mean over batches."""

    correct: int
    n: int

    @classmethod
    def of(cls, predictions: "Tensor", labels: "Tensor") -> "Score":
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


def confusion_matrix(labels: "Tensor", predictions: "Tensor", classes: int) -> "Tensor":
    """Counts by true class (rows) and named class (columns)."""
    return (labels * classes + predictions).bincount(minlength=classes**2).reshape(classes, classes)


def mean_and_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation of a sample; one value has no spread."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


SUFFIXES: dict[str, Literal["running", "reestimated"]] = {"": "running", "_reestimated": "reestimated"}
"""What the name of a measure ends with in each BatchNorm mode."""


@dataclass(frozen=True)
class Best:
    """An accuracy in the BatchNorm mode that suits the encoder better; no mode: none noted, or it has no BatchNorm."""

    accuracy: float
    batchnorm: str = ""
    sd: float | None = None  # over clients that share nothing

    @classmethod
    def of(cls, values: Mapping[str, Any], measure: str) -> "Best | None":
        """The better one of the modes that were measured."""
        known = {suffix: values[measure + suffix] for suffix in SUFFIXES if values.get(measure + suffix) is not None}
        if not known:
            return None
        suffix = max(known, key=lambda suffix: known[suffix])
        spreads = [values.get(f"backbone_std{suffix}") for suffix in SUFFIXES]
        same = spreads[0] is not None and spreads[0] == spreads[1]  # to the last bit: there is nothing to re-estimate
        return cls(float(known[suffix]), "" if same else SUFFIXES[suffix], values.get(f"{measure}{suffix}_sd"))


@dataclass(frozen=True)
class Gain:
    """What training gained over the encoder that it began with: both at their best, on the same test images."""

    baseline: Best
    trained: Best
    interval: tuple[float, float] | None = None  # 95 %; None: the number of test images is not known

    @property
    def difference(self) -> float:
        return self.trained.accuracy - self.baseline.accuracy

    @classmethod
    def unpaired(cls, baseline: Best, trained: Best, n: int | None) -> "Gain":
        """Where it is not known which images each classified correctly: wider than it need be."""
        if not n:
            return cls(baseline, trained)
        before, after = (Score(round(one.accuracy * n), n) for one in (baseline, trained))
        return cls(baseline, trained, unpaired_interval(before, after))


def paired_interval(total: float, squares: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """The 95 % interval of the mean of n differences, by their sum and their sum of squares (Bonett & Price, 2012).

    A difference is 1 for an image that only the second encoder classifies correctly, -1 for the other way round, 0 for
    the rest. One imagined image of either kind is added: without them, few differences would look like certainty.
    """
    n += 2
    mean = total / n
    half = z * math.sqrt(((squares + 2) / n - mean**2) / n)
    return max(mean - half, -1.0), min(mean + half, 1.0)


def unpaired_interval(before: Score, after: Score) -> tuple[float, float]:
    """The 95 % interval of the difference of two proportions, from the Wilson interval of each (Newcombe, 1998)."""
    (low_1, high_1), (low_2, high_2) = before.interval, after.interval
    p_1, p_2 = before.accuracy, after.accuracy
    difference = p_2 - p_1
    return difference - math.hypot(p_2 - low_2, high_1 - p_1), difference + math.hypot(high_2 - p_2, p_1 - low_1)
