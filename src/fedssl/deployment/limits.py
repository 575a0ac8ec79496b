"""What a site gives and what it asks for, whatever a server says: the least privacy, and the most of its machine."""

import math
from dataclasses import dataclass
from pathlib import Path

from fedssl.core.errors import FedsslError, printable
from fedssl.core.files import size_text
from fedssl.core.sealed import seal, unseal
from fedssl.experiment.config.messages import flatten
from fedssl.experiment.config.resolve import resolve
from fedssl.experiment.config.schema import Config, Raw
from fedssl.experiment.resume import changes
from fedssl.federation.privacy.mechanism import ClientDP

PRIVACY = ("any", "central", "distributed", "local")
NOISE_BEFORE = {"distributed": ("distributed", "local"), "local": ("local",)}  # what a site may insist on
PINNED = "settings"
# The largest whole numbers that a server may ask for, by setting or by table: far beyond every real run, and short of
# what makes a machine stand still.
MOST = {
    "threads": 256,
    "keep_checkpoints": 16,
    "rounds": 10**6,
    "local_training.epochs": 1_000,
    "local_training.batch_size": 2**16,
    "local_training.devices": 16,
    "network": 2**16,
    "method": 2**20,
    "data.image_size": 2**12,
    "data": 10**6,
    "partition": 10**6,
    "evaluation": 10**5,
}


@dataclass(frozen=True)
class Limits:
    """A site's own; each is an option of `fedssl client`."""

    require_privacy: str = "any"  # "central": updates of bounded length; the others: and noise before they leave
    min_noise: float = 0.0  # noise_multiplier
    max_clip: float = math.inf  # clip_norm
    allow_features: bool = False  # methods that send more than weights
    max_disk: float = 50.0  # GB, of the whole state folder
    max_runs: int = 100
    require_secure_aggregation: bool = False  # uploads that are masked before they leave
    min_sites: int = 2  # that a secure sum must hold at least
    no_evaluation: bool = False  # no accuracy is measured here, labels or not

    def __post_init__(self) -> None:
        if self.require_privacy not in PRIVACY:
            raise FedsslError(f"--require-privacy: {self.require_privacy!r} is not one of {', '.join(PRIVACY)}")

    def as_node(self) -> dict[str, str]:
        """What differs from the defaults, as a node's settings carry it."""
        given = vars(self).items() - vars(type(self)()).items()
        return {name.replace("_", "-"): str(value) for name, value in sorted(given)}

    @classmethod
    def of_node(cls, node: Raw) -> "Limits":
        kinds = {name: type(value) for name, value in vars(cls()).items()}
        given = {name: node[name.replace("_", "-")] for name in kinds if name.replace("_", "-") in node}
        return cls(**{name: kinds[name](value) for name, value in given.items()})

    @property
    def private(self) -> bool:
        return self.require_privacy != "any" or self.min_noise > 0 or self.max_clip < math.inf


def check_settings(config: Config, limits: Limits) -> None:
    """Refuses a server's settings that ask for more, or promise less, than this site will have."""
    for key, value in flatten(config.as_raw()).items():
        most = MOST.get(key, MOST.get(key.split(".")[0]))
        if most is not None and isinstance(value, int) and value > most:
            raise FedsslError(f"{key}: the server asks for {printable(str(value))}, this site gives {most} at most")
    if limits.require_secure_aggregation and not config.uploads.secure:
        raise FedsslError(
            "aggregation.secure: the server would see this site's weights, this site asks for a secure sum "
            "(--require-secure-aggregation)"
        )
    leaves = config.method.factory.leaves
    if leaves and config.update_rule.factory.shares and not limits.allow_features:
        raise FedsslError(
            f"method.name: with {config.method.name} every client also sends {leaves}: allow it with --allow-features"
        )
    if limits.private:
        _check_privacy(config.privacy.build(), limits)


def _check_privacy(privacy: ClientDP | None, limits: Limits) -> None:
    if privacy is None:
        raise FedsslError("privacy.name: the server asks for weights as they are, this site asks for 'client-dp'")
    if limits.require_privacy in NOISE_BEFORE and privacy.placement not in NOISE_BEFORE[limits.require_privacy]:
        asked = limits.require_privacy
        raise FedsslError(f"privacy.placement: the server asks for {privacy.placement!r}, this site asks for {asked!r}")
    if privacy.noise_seed != "secret":
        raise FedsslError("privacy.noise_seed: noise that who knows the seed can take off, this site asks for 'secret'")
    if privacy.noise_multiplier < limits.min_noise:
        noise = privacy.noise_multiplier
        raise FedsslError(f"privacy.noise_multiplier: {noise:g}, this site asks for {limits.min_noise:g} (--min-noise)")
    if privacy.clip_norm > limits.max_clip:
        raise FedsslError(f"privacy.clip_norm: {privacy.clip_norm:g}, this site takes {limits.max_clip:g} at most")


def open_run(runs: Path, run: str, config: Config, limits: Limits) -> Path:
    """The folder of a run at this site, with the settings of its first task: a later one may not change what matters.

    What may change is what a resumed run may change: rounds, threads, evaluation, failures and the like. A run of an
    earlier version, which wrote none down, is held to those of its next task.
    """
    folder = runs / run
    known = sorted(path.name for path in runs.iterdir()) if runs.exists() else []
    if run not in known and len(known) >= limits.max_runs:
        raise FedsslError(
            f"{runs}: holds {len(known)} runs, this site keeps {limits.max_runs} (--max-runs): "
            f"delete those that are over; {_oldest(runs)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / PINNED).exists():
        seal(folder / PINNED, {}, {"settings": config.as_raw()})
    begun = resolve(unseal(folder / PINNED).facts["settings"], config.allow_code)
    forbidden = [change for change in changes(begun.as_raw(), config.as_raw()) if not change.harmless]
    if forbidden:
        listed = "; ".join(printable(str(change)) for change in forbidden)
        raise FedsslError(f"run {run}: the server changed settings that are fixed since its first task: {listed}")
    return folder


def check_disk(state: Path, needed: int, limits: Limits) -> None:
    """Refuses a task whose state would not fit into what this site gives."""
    used, most = _bytes_in(state), limits.max_disk * 1e9
    if used + needed > most:
        raise FedsslError(
            f"{state}: {size_text(used)} are used and {size_text(needed)} are needed, this site gives "
            f"{size_text(most)} (--max-disk): delete runs that are over; {_oldest(state / 'runs')}"
        )


def _oldest(runs: Path) -> str:
    """In words: the runs that were not touched for longest, and their sizes."""
    folders = sorted(runs.iterdir(), key=lambda path: path.stat().st_mtime) if runs.exists() else []
    listed = [f"{path.name} ({size_text(_bytes_in(path))})" for path in folders[:3]]
    return f"the oldest: {', '.join(listed)}" if listed else "there is none here"


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
