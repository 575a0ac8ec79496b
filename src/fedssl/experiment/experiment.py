"""An experiment: config → parts → rounds → evaluation → run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedssl.core.extras import need
from fedssl.experiment.backends import OneMachine, Surroundings
from fedssl.experiment.build.networks import pinned
from fedssl.experiment.build.parts import Parts
from fedssl.experiment.config.layers import typed_config
from fedssl.experiment.config.schema import Config
from fedssl.experiment.loop import Running, steps_after
from fedssl.experiment.progress.loggers import Guarded, Logger
from fedssl.experiment.progress.views import QuietView, View
from fedssl.experiment.records.environment import describe_environment
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.resume import (
    Change,
    as_begun,
    changed_environment,
    changed_settings,
    finished,
    last_checkpoint,
    mend,
)
from fedssl.federation.checkpoint import Checkpoint


@dataclass(frozen=True)
class RunReport:
    """What a run came to: `summary` is the content of summary.json."""

    folder: Path
    summary: dict[str, Any]


class Experiment:
    """One run, described by its config."""

    def __init__(self, config: Config, surroundings: Surroundings | None = None) -> None:
        self.config, self.surroundings = config, surroundings or OneMachine()

    def __repr__(self) -> str:
        config = self.config
        clients = len(config.flower.clients) or config.partition.settings["num_clients"] or "by the data"
        return (
            f"Experiment({config.method.name} with {config.update_rule.name} on {config.data.name}, "
            f"clients: {clients}, rounds: {config.run.rounds})"
        )

    def run(
        self, folder: str | Path, view: View | None = None, loggers: Sequence[Logger] = (), force: bool = False
    ) -> RunReport:
        """Trains, evaluates and writes the run folder; a folder in which this run was begun is gone on with.

        Whenever it is stopped or killed, the same call goes on after the last finished round and ends with the same
        bits. `force` allows changes that do not touch what is done: rounds, evaluation, failures, threads, device.
        """
        path, shown = Path(folder), view or QuietView()
        begun = (path / "config.toml").exists()
        config = pinned(self.config)
        config = as_begun(path, config) if begun else config
        changed = changed_settings(path, config, force) if begun else []
        if begun and not changed and (summary := finished(path, config.run.rounds, shown.say)):
            shown.say(f"{path}: this run is finished, nothing is left to do")
            return RunReport(path, summary)
        if config.privacy.build() is not None:
            need("privacy", "privacy.name")
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        with shown:
            parts = self.surroundings.build(config, shown.preparing)
            run_folder = RunFolder.create(path)
            with run_folder.locked():
                choice = self.surroundings.choose(config, parts, run_folder, steps_after(0, config, parts))
                if choice.reason:
                    shown.say(f"note: {choice.reason}")
                chosen = replace(config, run=choice.run)
                course = _Course(chosen, parts, run_folder, shown, loggers, self.surroundings)
                return RunReport(path, course.follow(begun, changed))


class _Course:
    """From an open and locked run folder to a summary: where it begins, what is noted, and the rounds."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        folder: RunFolder,
        view: View,
        loggers: Sequence[Logger],
        surroundings: Surroundings,
    ) -> None:
        self.config, self.parts, self.folder, self.view, self.surroundings = config, parts, folder, view, surroundings
        self.logger = Guarded(loggers, view.say)

    def follow(self, begun: bool, changed: list[Change]) -> dict[str, Any]:
        running = Running(self.config, self.parts, self.folder, self.view, self.logger, self.surroundings)
        checkpoint = self._last_checkpoint(running) if begun else None
        done = checkpoint.state.round_number if checkpoint else None
        if done is None:
            self._write_first()
        else:
            for text in mend(self.folder, self._write_data):
                self.view.say(f"warning: {text}")
            self._note_resumption(changed, done)
        self.logger.start(self.folder.path, self.config.as_raw(), done)
        return running.run(checkpoint)

    def _last_checkpoint(self, running: Running) -> Checkpoint | None:
        checkpoint, damaged = last_checkpoint(self.folder, running.checkpoints, running.store, self.config)
        for text in damaged:
            self.view.say(f"warning: {text}")
        return checkpoint

    def _write_first(self) -> None:
        self.folder.write_environment(describe_environment(self.parts.device))
        self._write_data()
        self.folder.write_config(self.config.as_toml())  # last: it makes the folder one of a run

    def _write_data(self) -> None:
        partition = self.config.partition
        self.parts.partition.save(self.folder.partition, partition.name, partition.settings)
        self.folder.write_refused([asdict(one) for one in self.parts.dataset.refused])

    def _note_resumption(self, changed: list[Change], done: int) -> None:
        environment = describe_environment(self.parts.device)
        bits = changed_environment(self.folder.path, environment)
        for change in bits:
            self.view.say(f"warning: {change} since the run was begun: it goes on, but not bitwise as without the stop")
        for change in changed:
            self.view.say(f"note: {change}")
            if change.key == "rounds" and self.config.local_training.schedule == "cosine":
                rate = self.config.local_training.learning_rate
                rates = f"the next rate is {rate(done + 1, change.new):.4g}, not {rate(done + 1, change.old):.4g}"
                self.view.say(f"note: the cosine now ends at round {change.new}: {rates}")
        about = {
            "after_round": done,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "changed": {change.key: [change.old, change.new] for change in [*changed, *bits]},
            "environment": environment,
        }
        self.folder.add_resumption(about)
        self.folder.write_config(self.config.as_toml())


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """load("cifar10-noniid+fedu", {"rounds": 50}): an experiment from a preset or TOML file with settings on top."""
    return Experiment(typed_config(name, overrides))
