"""Going on with a run folder: what may have changed since, and what would make it another run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedssl.config import Config, Raw
from fedssl.errors import DamagedError, FedsslError
from fedssl.federation.checkpoint import Checkpoint, CheckpointStore
from fedssl.federation.client_store import ClientStore
from fedssl.federation.rounds import ServerState
from fedssl.presets import load_config
from fedssl.reports.compare import flatten, setting_text
from fedssl.reports.run_folder import RunFolder
from fedssl.reports.run_record import read_json

# What does not decide the weights of the rounds that are done; a table's name stands for all its settings.
HARMLESS = (
    *("rounds", "threads", "device", "engine", "workers", "keep_checkpoints", "profile", "evaluation", "failures"),
    *("flower.cpus_per_client", "flower.gpus_per_client", "flower.ray_address", "flower.patience"),
)
# Another value of these gives other bits.
BITS = ("packages.torch", "packages.numpy", "torch_threads", "device", "cpu", "gpu")


@dataclass(frozen=True)
class Change:
    """A setting that is not what it was when the run began."""

    key: str
    old: Any
    new: Any

    @property
    def harmless(self) -> bool:
        return self.key in HARMLESS or self.key.split(".")[0] in HARMLESS

    def __str__(self) -> str:
        return f"{self.key} {setting_text(self.old)} → {setting_text(self.new)}"


def changes(old: Raw, new: Raw) -> list[Change]:
    """Every setting whose value differs, by its dotted name."""
    before, now = flatten(old), flatten(new)
    keys = [*before, *(key for key in now if key not in before)]
    return [Change(key, before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)]


def as_begun(folder: Path, config: Config) -> Config:
    """An engine that is left to us stays the one with which the run was begun: another has other bits."""
    if config.run.engine != "auto":
        return config
    begun = load_config(str(folder / "config.toml")).run
    threads = config.run.threads or begun.threads
    chosen = {"engine": begun.engine, "workers": begun.workers, "threads": threads}
    return replace(config, run=config.run.model_copy(update=chosen))


def changed_settings(folder: Path, config: Config, force: bool) -> list[Change]:
    """The harmless changes that `force` allows; anything else is refused with all differences."""
    found = changes(load_config(str(folder / "config.toml")).as_raw(), config.as_raw())
    listed = "; ".join(str(change) for change in found)
    if any(not change.harmless for change in found):
        raise FedsslError(
            f"{folder}: this run was begun with other settings: {listed}. "
            "Go on with the old ones, or start another run with --fresh"
        )
    if found and not force:
        raise FedsslError(
            f"{folder}: this run was begun with other settings: {listed}. They may change: say so with --force"
        )
    return found


def changed_environment(folder: Path, environment: dict[str, Any]) -> list[Change]:
    """What is different here from where the run was begun or last gone on with, as far as it decides bits."""
    path = folder / "environment.json"
    before = read_json(path) if path.exists() else {}
    before = before | (before["resumed"][-1]["environment"] if before.get("resumed") else {})
    return [change for change in changes(before, environment) if change.key in BITS]


def last_checkpoint(
    folder: RunFolder, checkpoints: CheckpointStore, store: ClientStore | None, rounds: int
) -> tuple[Checkpoint | None, list[str]]:
    """Where a run goes on and what was found damaged on the way; None: it was stopped before anything was saved."""

    def check(state: ServerState) -> None:
        for client_id, accepted in sorted(state.accepted_round.items()):
            if store is not None:  # else they lie at the clients, who check them themselves
                store.check(client_id, accepted)

    checkpoint, damaged = checkpoints.newest(check)
    if checkpoint is None and any(record["clients"] for record in folder.written_rounds()):
        raise DamagedError(
            f"{checkpoints.folder}: holds no checkpoint, but rounds.jsonl has rounds: put the folder back, "
            "or start anew in another folder with --fresh"
        )
    if checkpoint and checkpoint.state.round_number > rounds:
        raise FedsslError(f"rounds: {rounds} is less than the {checkpoint.state.round_number} rounds that are done")
    return checkpoint, damaged


def finished(folder: Path, rounds: int) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do."""
    if not (folder / "summary.json").exists():
        return None
    summary = read_json(folder / "summary.json")
    return summary if summary.get("status") == "finished" and summary.get("rounds") == rounds else None
