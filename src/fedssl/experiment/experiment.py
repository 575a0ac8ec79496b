"""An experiment: from its settings to a locked run folder in which it starts or is resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedssl.core.extras import need
from fedssl.core.files import Place
from fedssl.experiment.backends import Backend, OneMachine
from fedssl.experiment.build.automatic import fitted
from fedssl.experiment.build.networks import pinned
from fedssl.experiment.config.layers import typed_config
from fedssl.experiment.config.schema import Config
from fedssl.experiment.loop import Loop
from fedssl.experiment.observers import Observer
from fedssl.experiment.progress.live import NotedView
from fedssl.experiment.progress.loggers import Logger
from fedssl.experiment.progress.views import QuietView, View
from fedssl.experiment.records.environment import describe_environment
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.resume import (
    Change,
    as_begun,
    changed_settings,
    finished,
    last_checkpoint,
    mend,
    note_resumption,
)
from fedssl.experiment.summary import steps_after
from fedssl.federation.checkpoint import Checkpoint
from fedssl.federation.privacy.budget import with_noise_key


@dataclass(frozen=True)
class RunReport:
    """What a run came to: `summary` is the content of summary.json. It can be given wherever a run folder is wanted.

    >>> report = fedssl.load("smoke", {"rounds": 1}).run("runs/y")
    >>> report.folder.name, fedssl.load_encoder(report).training
    ('y', False)
    """

    folder: Path
    summary: dict[str, Any]

    def __fspath__(self) -> str:
        return str(self.folder)


class Experiment:
    """One run, described by its config."""

    def __init__(self, config: Config, backend: Backend | None = None) -> None:
        self.config, self.backend = config, backend or OneMachine()

    def __repr__(self) -> str:
        config = self.config
        clients = len(config.flower.clients) or config.partition.settings["num_clients"] or "by the data"
        return (
            f"Experiment({config.method.name} with {config.update_rule.name} on {config.data.name}, "
            f"clients: {clients}, rounds: {'auto' if 'rounds' in config.automatic else config.run.rounds})"
        )

    def run(
        self,
        folder: Place,
        view: View | None = None,
        loggers: Sequence[Logger] = (),
        force: bool = False,
        observers: Sequence[Observer] = (),
    ) -> RunReport:
        """Trains, evaluates and writes the run folder; a run that was begun in it is resumed.

        Whenever it is stopped or killed, the same call resumes after the last finished round and ends with the same
        bits. `force` allows changes that do not touch what is done: rounds, evaluation, failures, threads, device.
        `observers` are called at the start, after every round and at the end; what one of them raises ends the run.

        >>> report = fedssl.load("smoke", {"rounds": 1}).run("runs/y")
        >>> report.summary["status"], report.summary["rounds"], sorted(report.summary["final"])[:1]
        ('finished', 1, ['backbone_std'])
        """
        path = Path(folder)
        shown = NotedView(view or QuietView(), path)
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
            config, chosen = fitted(config, shown.progress)
            if chosen:
                shown.say(f"note: {chosen}")
            parts = self.backend.build(config, shown.progress)
            run_folder = RunFolder.create(path)
            with run_folder.locked():
                choice = self.backend.choose(config, parts, run_folder, steps_after(0, config, parts))
                if choice.reason:
                    shown.say(f"note: {choice.reason}")
                loop = Loop(
                    config=replace(config, run=choice.run),
                    parts=parts,
                    folder=run_folder,
                    view=shown,
                    loggers=loggers,
                    watching=observers,
                    backend=self.backend,
                )
                return RunReport(path, loop.run(_start_or_resume(loop, begun, changed)))


def _start_or_resume(loop: Loop, begun: bool, changed: list[Change]) -> Checkpoint | None:
    """Writes down in the folder what the run is, or that it is resumed: after the checkpoint that is returned."""
    config, folder, say = loop.config, loop.folder, loop.view.say
    environment = describe_environment(loop.parts.device)

    def write_data() -> None:
        loop.parts.partition.save(folder.partition, config.partition.name, config.partition.settings)
        folder.write_refused([asdict(one) for one in loop.parts.dataset.refused])

    checkpoint, damaged = last_checkpoint(folder, loop.checkpoints, loop.store, config) if begun else (None, [])
    for text in damaged:
        say(f"warning: {text}")
    if checkpoint is None:
        folder.write_environment(environment)
        write_data()
        folder.write_config(config.as_toml())  # last: it makes the folder one of a run
        return None
    with_noise_key(loop.parts.server, folder.noise_key, checkpoint)  # what cannot be resumed is not written to
    for text in mend(folder, write_data):
        say(f"warning: {text}")
    for text in note_resumption(folder, config, environment, changed, checkpoint.state.round_number):
        say(text)
    return checkpoint


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """An experiment from a preset or a TOML file, with settings on top.

    >>> import fedssl
    >>> fedssl.load("smoke+fedu", {"rounds": 2})
    Experiment(byol with fedu on synthetic, clients: 4, rounds: 2)
    """
    return Experiment(typed_config(name, overrides))
