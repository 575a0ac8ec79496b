"""What to evaluate and how, checked before anything is loaded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

from fedssl.core.errors import FedsslError
from fedssl.core.registry import unknown
from fedssl.evaluation.protocols import PROTOCOLS, Variant
from fedssl.experiment.config.layers import parse_override
from fedssl.experiment.config.schema import Raw

BASELINES = ("random", "supervised")
EPOCHS = {"linear": 200, "semi": 100, "supervised": 100}


@dataclass(frozen=True)
class Request:
    """What to evaluate and how; bad names and numbers are refused when it is made."""

    protocols: Sequence[str] = ("knn", "linear")
    _: KW_ONLY
    variant: Variant = "paper"
    seeds: int = 1
    batchnorm: Literal["running", "reestimated", "both"] | None = None  # None: both for kNN and linear, else running
    data: str | None = None  # another dataset than the run's
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    baselines: Sequence[str] = ()
    clients: bool = False
    epochs: Mapping[str, int] = field(default_factory=dict)  # by "linear", "semi", "supervised"
    device: str = "auto"
    cache: bool = True

    def __post_init__(self) -> None:
        if not self.protocols:
            raise FedsslError(f"--protocol: name at least one of {', '.join(PROTOCOLS)}")
        for name in self.protocols:
            PROTOCOLS.path(name)
        _known("--baseline", self.baselines, BASELINES)
        _known("--variant", [self.variant], get_args(Variant))
        _known("--batchnorm", [self.batchnorm] if self.batchnorm else [], ("running", "reestimated", "both"))
        _known("--epochs", self.epochs, EPOCHS)
        if self.seeds < 1:
            raise FedsslError(f"--seeds: {self.seeds} is not a whole number 1 or more")
        for name, count in self.epochs.items():
            if count < 1:
                raise FedsslError(f"--epochs: {count} for {name} is not a whole number 1 or more")
        if self.data_settings and self.data is None:
            raise FedsslError("--set gives settings of the dataset that --data names: add --data")


def _known(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise unknown(f"{option}: there is no", name, known)


def parse_names(text: str) -> tuple[str, ...]:
    """ "knn, linear" -> its names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_epochs(text: str) -> dict[str, int]:
    """ "50" for all that trains, or "linear=200,supervised=20"."""
    given = dict.fromkeys(EPOCHS, text) if text.strip() and "=" not in text else {}
    for item in parse_names(text) if "=" in text else ():
        name, _, value = item.partition("=")
        given[name.strip()] = value
    try:
        return {name: int(value) for name, value in given.items()}
    except ValueError:
        raise FedsslError(f"--epochs {text}: write a whole number, or linear=200,semi=100,supervised=50") from None


def parse_settings(texts: Sequence[str]) -> Raw:
    """["image_size=16", "data.classes=5"] -> settings of the [data] table."""
    return {path.removeprefix("data."): value for path, value in map(parse_override, texts)}
