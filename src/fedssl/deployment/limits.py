"""A server's settings held against a site's policy: refused where they ask for more, or promise less."""

from pathlib import Path

from fedssl.core.errors import FedsslError, safe_text
from fedssl.core.files import bytes_in, size_text
from fedssl.core.sealed import seal, unseal
from fedssl.deployment.audit import Spent
from fedssl.deployment.policy import TABLES, Policy
from fedssl.experiment.config.resolve import resolve
from fedssl.experiment.config.schema import Config
from fedssl.experiment.config.texts import flatten
from fedssl.experiment.resume import changes
from fedssl.federation.privacy.mechanism import ClientDP

PINNED = "settings"
# The largest whole numbers that a server may ask for, by setting or by table, where the policy says nothing: far
# beyond every real run, and short of what makes a machine stand still.
MOST = {
    "threads": 256,
    "keep_checkpoints": 16,
    "rounds": 10**6,
    "local_training.epochs": 1_000,
    "local_training.batch_size": 2**16,
    "local_training.devices": 16,
    "local_training": 10**6,
    "network": 2**16,
    "method": 2**20,
    "data.image_size": 2**12,
    "augmentation": 2**12,
    "data": 10**6,
    "partition": 10**6,
    "evaluation": 10**5,
}


def check_settings(config: Config, policy: Policy) -> None:
    """Refuses a server's settings that ask for more, or promise less, than this site will have."""
    for field, table in TABLES.items():
        name, allowed = getattr(config, table).name, getattr(policy, field)
        if allowed and name not in allowed:
            raise FedsslError(f"{table}.name: {safe_text(name)!r}, this site allows {', '.join(allowed)}")
    own = {"rounds": policy.max_rounds, "local_training.epochs": policy.max_epochs}
    limits = MOST | {key: most for key, most in own.items() if most is not None}
    for key, value in flatten(config.as_raw()).items():
        most = limits.get(key, limits.get(key.split(".")[0]))
        if most is not None and isinstance(value, int) and value > most:
            raise FedsslError(f"{key}: the server asks for {safe_text(str(value))}, this site allows {most} at most")
    if policy.require_secure_aggregation and not config.uploads.secure:
        raise FedsslError(
            "aggregation.secure: the server would see this site's weights, this site asks for a secure sum "
            "(--require-secure-aggregation)"
        )
    leaves = config.method.factory.leaves
    if leaves and config.update_rule.factory.shares and not policy.allow_features:
        raise FedsslError(
            f"method.name: with {config.method.name} every client also sends {leaves}: allow it with --allow-features"
        )
    if policy.private:
        _check_privacy(config.privacy.build(), policy)


def _check_privacy(privacy: ClientDP | None, policy: Policy) -> None:
    if privacy is None:
        raise FedsslError("privacy.name: the server asks for weights as they are, this site asks for 'client-dp'")
    if not privacy.hides(policy.require_privacy):
        needed = policy.require_privacy
        raise FedsslError(f"privacy.placement: the server asks for {privacy.placement!r}, this site for {needed!r}")
    if privacy.noise_seed != "secret":
        raise FedsslError("privacy.noise_seed: who knows the seed can remove the noise, this site asks for 'secret'")
    if privacy.noise_multiplier < policy.min_noise:
        noise = privacy.noise_multiplier
        raise FedsslError(f"privacy.noise_multiplier: {noise:g}, this site asks for {policy.min_noise:g} (--min-noise)")
    if policy.max_clip is not None and privacy.clip_norm > policy.max_clip:
        raise FedsslError(f"privacy.clip_norm: {privacy.clip_norm:g}, this site takes {policy.max_clip:g} at most")


def open_run(runs: Path, run: str, config: Config, policy: Policy) -> Path:
    """The folder of a run at this site, with the settings of its first task: a later one may not change what matters.

    What may change is what a resumed run may change: rounds, threads, evaluation, failures and the like. A run of an
    earlier version, which wrote none down, is held to those of its next task.
    """
    folder = runs / run
    known = sorted(path.name for path in runs.iterdir()) if runs.exists() else []
    if run not in known and len(known) >= policy.max_runs:
        raise FedsslError(
            f"{runs}: holds {len(known)} runs, this site keeps {policy.max_runs} (--max-runs): "
            f"delete those that are over; {_oldest(runs)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / PINNED).exists():
        seal(folder / PINNED, {}, {"settings": config.as_raw()})
    begun = resolve(unseal(folder / PINNED).facts["settings"], config.allow_code)
    forbidden = [change for change in changes(begun.as_raw(), config.as_raw()) if not change.harmless]
    if forbidden:
        listed = "; ".join(safe_text(str(change)) for change in forbidden)
        raise FedsslError(f"run {run}: the server changed settings that are fixed since its first task: {listed}")
    return folder


def check_spent(spent: Spent, round_number: int, config: Config, policy: Policy) -> None:
    """Refuses a round beyond those of the run, and more rounds or hours than this site allows it.

    The upload of the last round may be asked for again.
    """
    if round_number > config.run.rounds:
        raise FedsslError(f"round {round_number}: the run has {config.run.rounds}")
    most = policy.max_rounds
    if most and spent.uploads >= most and (spent.uploads > most or round_number != spent.round_number):
        raise FedsslError(f"max_rounds: {spent.uploads} uploads left this site, which allows {most} per run")
    if policy.max_hours and spent.hours >= policy.max_hours:
        raise FedsslError(
            f"max_hours: this site worked {spent.hours:.1f} hours for the run and allows {policy.max_hours:g}"
        )


def check_upload(size: int, policy: Policy) -> None:
    """Refuses to send more in a round than this site lets out."""
    if policy.max_upload and size > policy.max_upload * 1e6:
        raise FedsslError(
            f"max_upload: {size_text(size)} would leave, this site allows {policy.max_upload:g} MB per round"
        )


def check_disk(state: Path, needed: int, policy: Policy) -> None:
    """Refuses a task whose state would not fit into what this site allows."""
    used, most = bytes_in(state), policy.max_disk * 1e9
    if used + needed > most:
        raise FedsslError(
            f"{state}: {size_text(used)} are used and {size_text(needed)} are needed, this site allows "
            f"{size_text(most)} (--max-disk): delete runs that are over; {_oldest(state / 'runs')}"
        )


def _oldest(runs: Path) -> str:
    """In words: the runs that were not touched for longest, and their sizes."""
    folders = sorted(runs.iterdir(), key=lambda path: path.stat().st_mtime) if runs.exists() else []
    listed = [f"{path.name} ({size_text(bytes_in(path))})" for path in folders[:3]]
    return f"the oldest: {', '.join(listed)}" if listed else "there is none here"
