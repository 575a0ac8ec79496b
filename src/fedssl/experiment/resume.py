"""Resuming a run folder: what may have changed since, and what would make it another run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedssl.core.checksums import problem_of, problems_in
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import move_aside
from fedssl.core.progress import Say
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.config.schema import Config, Raw
from fedssl.experiment.config.texts import flatten, setting_text
from fedssl.experiment.records.encoder_file import read_encoder
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import ENCODER, SUMMARY, check_config, read_environment, read_summary, vouched
from fedssl.experiment.summary import Results
from fedssl.federation.checkpoint import Checkpoint, CheckpointStore
from fedssl.federation.client_store import ClientStore

# What does not decide the weights of the rounds that are done; a table's name stands for all its settings.
HARMLESS = (
    *("rounds", "threads", "device", "engine", "workers", "keep_checkpoints", "profile", "evaluation", "failures"),
    *("flower.cpus_per_client", "flower.gpus_per_client", "flower.ray_address", "flower.patience"),
    "flower.approval_patience",
)
# What of a run's records can be written again from what is known, and what no result depends on.
MADE_AGAIN = ("partition.json", "refused.jsonl", "metrics.csv")
PUT_ASIDE = ("environment.json", "failures.jsonl", "profile.jsonl", "evaluation.jsonl")
START_OVER = "--set failures.damaged_state=start-over"
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
    """What is left to us stays as the run was begun: another engine has other bits, another number of images too."""
    begun = load_config(str(check_config(folder)), allow_code=config.allow_code)
    if config.automatic:
        values = flatten(begun.as_raw())
        config = config.with_chosen({path: values.get(path) for path in config.automatic})
    if config.run.engine != "auto":
        return config
    threads = config.run.threads or begun.run.threads
    chosen = {"engine": begun.run.engine, "workers": begun.run.workers, "threads": threads}
    return replace(config, run=config.run.model_copy(update=chosen))


def changed_settings(folder: Path, config: Config, force: bool) -> list[Change]:
    """The harmless changes that `force` allows; anything else is refused with all differences."""
    begun = load_config(str(check_config(folder)), allow_code=config.allow_code)
    differences = changes(begun.as_raw(), config.as_raw())
    listed = "; ".join(str(change) for change in differences)
    if any(not change.harmless for change in differences):
        raise FedsslError(
            f"{folder}: this run was begun with other settings: {listed}. "
            "Resume with the old ones, or start another run with --fresh"
        )
    if differences and not force:
        raise FedsslError(
            f"{folder}: this run was begun with other settings: {listed}. They may change: say so with --force"
        )
    return differences


def changed_environment(folder: Path, environment: dict[str, Any]) -> list[Change]:
    """What is different here from where the run was begun or last resumed, as far as it decides bits."""
    before = read_environment(folder)
    before = before | (before["resumed"][-1]["environment"] if before.get("resumed") else {})
    return [change for change in changes(before, environment) if before and change.key in BITS]


def last_checkpoint(
    folder: RunFolder, checkpoints: CheckpointStore, store: ClientStore | None, config: Config
) -> tuple[Checkpoint | None, list[str]]:
    """Where a run resumes and what was found damaged on the way; None: it was stopped before anything was saved."""
    harmed: dict[int, list[str]] = {}  # by the round of a checkpoint: what is wrong with states of clients

    def recorded(checkpoint: Checkpoint) -> None:
        seals, path = checkpoint.run.get("files", {}), folder.path / "rounds.jsonl"
        if path.name in seals and (problem := problem_of(path, seals[path.name])):
            raise DamagedError(f"{path}: {problem}")

    def whole(checkpoint: Checkpoint) -> None:
        recorded(checkpoint)
        problems = damaged_states(store, checkpoint) if store else []  # else they lie at the clients, who check them
        if problems:
            harmed[checkpoint.state.round_number] = problems
            raise DamagedError("; ".join(problems))

    try:
        checkpoint, damaged = checkpoints.newest(whole)
    except DamagedError as error:
        if not harmed:
            raise
        if config.failures.damaged_state == "error":
            raise DamagedError(f"{error}; or let the clients named start over: {START_OVER} --force") from None
        checkpoint, damaged = checkpoints.newest(recorded)
        assert checkpoint is not None
        damaged += [f"{text}; the client starts over" for text in harmed[checkpoint.state.round_number]]
    if checkpoint is None and any(record.get("clients") for record in folder.written_rounds()):
        raise DamagedError(
            f"{checkpoints.folder}: holds no checkpoint, but rounds.jsonl has rounds: put the folder back, "
            "or start anew in another folder with --fresh"
        )
    rounds = config.run.rounds
    if checkpoint and checkpoint.state.round_number > rounds:
        raise FedsslError(f"rounds: {rounds} is less than the {checkpoint.state.round_number} rounds that are done")
    return checkpoint, damaged


def damaged_states(store: ClientStore, checkpoint: Checkpoint) -> list[str]:
    """What is wrong with the states that a checkpoint names, client by client."""
    problems = []
    for client_id, accepted in sorted(checkpoint.state.accepted_round.items()):
        try:
            store.check(client_id, accepted)
        except DamagedError as error:
            problems.append(str(error))
    return problems


def mend(folder: RunFolder, write_again: Callable[[], None]) -> list[str]:
    """Makes again or puts aside what is not as the run wrote it, but for rounds and settings; says what was done."""
    broken = problems_in(folder.path, vouched(folder.path))
    notes = []
    for name, problem in broken.items():
        path = folder.path / name
        if name in MADE_AGAIN:
            notes.append(f"{path}: {problem}; it is made again")
        elif name in PUT_ASIDE:
            moved = f"moved to {move_aside(path)}, " if path.exists() else ""
            notes.append(f"{path}: {problem}; {moved}the run continues without it")
    if any(name in MADE_AGAIN for name in broken):
        write_again()
    return notes


def note_resumption(folder: RunFolder, config: Config, environment: Raw, changed: list[Change], done: int) -> list[str]:
    """Writes down that the run is resumed after round `done`, and where; returns what is not as it was, in words."""
    bits = changed_environment(folder.path, environment)
    lost = "since the run was begun: it resumes, but not bitwise as without the stop"
    notes = [f"warning: {change} {lost}" for change in bits]
    for change in changed:
        notes.append(f"note: {change}")
        if change.key == "rounds" and config.local_training.needs_rounds:
            rate = config.local_training.learning_rate
            rates = f"the next one is {rate(done + 1, change.new):.4g}, not {rate(done + 1, change.old):.4g}"
            notes.append(f"note: the rate now falls until round {change.new}: {rates}")
    about = {
        "after_round": done,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "changed": {change.key: [change.old, change.new] for change in [*changed, *bits]},
        "environment": environment,
    }
    folder.add_resumption(about)
    folder.write_config(config.as_toml())
    return notes


def restored(folder: RunFolder, checkpoint: Checkpoint, rounds: int, say: Say) -> tuple[Results, list[dict[str, Any]]]:
    """The results that a checkpoint carries and the records of its rounds; what came after them is taken back."""
    run, done = checkpoint.run, checkpoint.state.round_number
    results = Results(dict(run["results"]), run.get("correct", {}))  # runs of older versions kept none
    seals = run.get("files", {})
    if "rounds.jsonl" in seals:  # for all else the summary vouches, if one was written since
        seals = vouched(folder.path) | {"rounds.jsonl": seals["rounds.jsonl"]}
    before = folder.reopen()
    if done == rounds and "evaluation" in before:  # what `fedssl evaluate` said of these very weights
        results.results["evaluation"] = before["evaluation"]
    elif done == rounds and not before:
        known = (folder.path / "evaluation.jsonl").exists()
        lost = ", without the headline of evaluation.jsonl: evaluate again to have it there" if known else ""
        say(f"warning: {folder.path / SUMMARY}: missing or damaged; it is made again{lost}")
    return results, folder.cut_back(done, seals)


def finished(folder: Path, rounds: int, say: Say) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do; it has, when what it wrote is damaged or gone."""
    if not (folder / SUMMARY).exists():
        return None
    try:
        summary = read_summary(folder)
        if summary.get("status") != "finished" or summary.get("rounds") != rounds:
            return None
        if not (folder / ENCODER).exists():
            raise DamagedError(f"{folder / ENCODER}: is missing")
        read_encoder(folder / ENCODER)
    except FedsslError as error:
        say(f"warning: {str(error).partition(': put back')[0]}; it is made again from the newest checkpoint")
        return None
    return None if problems_in(folder, summary.get("files", {})) else summary
