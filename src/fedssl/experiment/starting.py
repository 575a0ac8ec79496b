"""A run in its folder: refused, or started, or resumed, with the folder locked."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedssl.core.extras import need
from fedssl.experiment.backends import Backend, OneMachine
from fedssl.experiment.build.automatic import fitted
from fedssl.experiment.build.networks import pinned
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


def start_or_resume(
    path: Path,
    config: Config,
    backend: Backend | None,
    *,
    view: View | None,
    loggers: Sequence[Logger],
    force: bool,
    observers: Sequence[Observer],
) -> dict[str, Any]:
    """Runs what the folder says is left, and gives the content of summary.json; all as `Experiment.run` says."""
    backend = backend or OneMachine()
    shown = NotedView(view or QuietView(), path)
    begun = (path / "config.toml").exists()
    config = pinned(config)
    config = as_begun(path, config) if begun else config
    changed = changed_settings(path, config, force) if begun else []
    if begun and not changed and (summary := finished(path, config.run.rounds, shown.say)):
        shown.say(f"{path}: this run is finished, nothing is left to do")
        return summary
    if config.privacy.build() is not None:
        need("privacy", "privacy.name")
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    with shown:
        config, chosen = fitted(config, shown.progress)
        if chosen:
            shown.say(f"note: {chosen}")
        parts = backend.build(config, shown.progress)
        run_folder = RunFolder.create(path)
        with run_folder.locked():
            choice = backend.choose(config, parts, run_folder, steps_after(0, config, parts))
            if choice.reason:
                shown.say(f"note: {choice.reason}")
            loop = Loop(
                config=replace(config, run=choice.run),
                parts=parts,
                folder=run_folder,
                view=shown,
                loggers=loggers,
                watching=observers,
                backend=backend,
            )
            return loop.run(_written_down(loop, begun, changed))


def _written_down(loop: Loop, begun: bool, changed: list[Change]) -> Checkpoint | None:
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
