"""Results of an evaluation: one record each, and the headline: means and spreads over seeds and clients."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedssl.evaluation.features import BatchNorm
from fedssl.evaluation.protocols import Variant
from fedssl.evaluation.score import Score, mean_and_sd

KEY = ("encoder", "data", "protocol", "variant", "batchnorm", "test_images")
"""What tells two entries of a headline apart; a newer entry replaces an older one with the same."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One encoder by one protocol with one seed: how many of which test images it classified correctly."""

    encoder: str  # "global", "random", "supervised" or "client 3"
    data: str
    protocol: str
    variant: Variant
    batchnorm: BatchNorm
    test_images: str  # "all", or "classes of client 3"
    seed: int | None  # None: nothing was drawn
    score: Score
    settings: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The line of evaluation.jsonl."""
        return {
            **{name: getattr(self, name) for name in (*KEY, "seed")},
            "accuracy": self.score.accuracy,
            "interval_95": list(self.score.interval),
            "correct": self.score.correct,
            "n": self.score.n,
            "settings": self.settings,
            **self.details,
        }

    def group(self) -> tuple[str, ...]:
        """The entry of the headline it counts to: clients are averaged, and so are the classes of each of them."""
        encoder = "clients" if self.encoder.startswith("client ") else self.encoder
        scope = "all" if self.test_images == "all" else "own classes"
        return encoder, self.data, self.protocol, self.variant, self.batchnorm, scope


def headline(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One entry for each group, in the order in which they came."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(result.group(), []).append(result)
    return [_entry(group, members) for group, members in groups.items()]


def _entry(group: tuple[str, ...], members: list[Result]) -> dict[str, Any]:
    """Mean over seeds; with several clients the spread is over them, with one encoder over seeds."""
    units: dict[tuple[str, str], list[Result]] = {}
    for result in members:
        units.setdefault((result.encoder, result.test_images), []).append(result)
    over_seeds = {unit: mean_and_sd([r.score.accuracy for r in results]) for unit, results in units.items()}
    seeds = max(len(results) for results in units.values())
    clients = len(units) if group[0] == "clients" or group[-1] != "all" else None
    mean, sd = mean_and_sd([mean for mean, _ in over_seeds.values()]) if clients else next(iter(over_seeds.values()))
    alone = members[0].score if len(members) == 1 else None
    return {
        **dict(zip(KEY, group, strict=True)),
        "accuracy": mean,
        "sd": sd,
        "interval_95": list(alone.interval) if alone else None,
        "seeds": seeds,
        "clients": clients,
        "n": sum(results[0].score.n for results in units.values()) if group[-1] != "all" else members[0].score.n,
        "settings": members[0].settings,
    }


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The old entries that no new one replaces, then the new ones."""
    replaced = {tuple(entry[name] for name in KEY) for entry in new}
    return [entry for entry in old if tuple(entry.get(name) for name in KEY) not in replaced] + new


def describe(result: Result) -> str:
    low, high = result.score.interval
    seed = "" if result.seed is None else f", seed {result.seed}"
    scope = "" if result.test_images == "all" else f", {result.test_images}"
    return (
        f"{result.encoder}: {result.protocol} ({result.variant}), BatchNorm {result.batchnorm}{scope}{seed}: "
        f"{100 * result.score.accuracy:.2f} % of {result.score.n} test images ({100 * low:.1f}–{100 * high:.1f})"
    )
