"""An experiment: config → parts → rounds → evaluation → run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedssl.build import Parts, build
from fedssl.config import Config
from fedssl.federation.checkpoint import Checkpoint
from fedssl.presets import load_config
from fedssl.reports.environment import describe_environment
from fedssl.reports.loggers import Guarded, Logger
from fedssl.reports.progress import QuietView, View
from fedssl.reports.run_folder import RunFolder
from fedssl.resuming import Change, changed_environment, changed_settings, finished, last_checkpoint
from fedssl.running import Running


@dataclass(frozen=True)
class RunReport:
    """What a run came to: `summary` is the content of summary.json."""

    folder: Path
    summary: dict[str, Any]


class Experiment:
    """One run, described by its config."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def run(
        self, folder: str | Path, view: View | None = None, loggers: Sequence[Logger] = (), force: bool = False
    ) -> RunReport:
        """Trains, evaluates and writes the run folder; a folder in which this run was begun is gone on with.

        Whenever it is stopped or killed, the same call goes on after the last finished round and ends with the same
        bits. `force` allows changes that do not touch what is done: rounds, evaluation, failures, threads, device.
        """
        path, shown = Path(folder), view or QuietView()
        begun = (path / "config.toml").exists()
        changed = changed_settings(path, self.config, force) if begun else []
        if begun and not changed and (summary := finished(path, self.config.run.rounds)):
            shown.say(f"{path}: this run is finished, nothing is left to do")
            return RunReport(path, summary)
        if self.config.run.threads:
            torch.set_num_threads(self.config.run.threads)
        parts = build(self.config)
        run_folder = RunFolder.create(path)
        with run_folder.locked(), shown:
            guarded = Guarded(loggers, shown.say)
            running = Running(self.config, parts, run_folder, shown, guarded)
            checkpoint = self._last_checkpoint(run_folder, running, shown) if begun else None
            done = checkpoint.state.round_number if checkpoint else None
            if done is None:
                self._write_first(run_folder, parts)
            else:
                self._note_resumption(run_folder, parts, shown, changed, done)
            guarded.start(run_folder.path, self.config.as_raw(), done)
            return RunReport(path, running.run(checkpoint))

    def _last_checkpoint(self, folder: RunFolder, running: Running, view: View) -> Checkpoint | None:
        rounds = self.config.run.rounds
        checkpoint, damaged = last_checkpoint(folder, running.checkpoints, running.store, rounds)
        for text in damaged:
            view.say(f"warning: {text}; the run goes on from the one before")
        return checkpoint

    def _write_first(self, folder: RunFolder, parts: Parts) -> None:
        folder.write_environment(describe_environment(parts.device))
        parts.partition.save(folder.partition, self.config.partition.name, self.config.partition.settings)
        folder.write_config(self.config.as_toml())  # last: it makes the folder one of a run

    def _note_resumption(self, folder: RunFolder, parts: Parts, view: View, changed: list[Change], done: int) -> None:
        environment = describe_environment(parts.device)
        bits = changed_environment(folder.path, environment)
        for change in bits:
            view.say(f"warning: {change} since the run was begun: it goes on, but not bitwise as without the stop")
        for change in changed:
            view.say(f"note: {change}")
            if change.key == "rounds" and self.config.local_training.schedule == "cosine":
                lr = [self.config.local_training.learning_rate(done + 1, rounds) for rounds in (change.old, change.new)]
                view.say(
                    f"note: the cosine now ends at round {change.new}: the next rate is {lr[1]:.4g}, not {lr[0]:.4g}"
                )
        about = {
            "after_round": done,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "changed": {change.key: [change.old, change.new] for change in [*changed, *bits]},
            "environment": environment,
        }
        folder.add_resumption(about)
        folder.write_config(self.config.as_toml())


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """load("cifar10-noniid+fedu", {"rounds": 50}): an experiment from a preset or TOML file with settings on top."""
    return Experiment(load_config(name, overrides))
