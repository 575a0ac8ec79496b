"""An experiment: its settings, and what a run of it comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.core.files import Place
from fedssl.experiment.config.layers import typed_config
from fedssl.experiment.config.schema import Config

if TYPE_CHECKING:
    from fedssl.experiment.backends import Backend
    from fedssl.experiment.observers import Observer
    from fedssl.experiment.progress.loggers import Logger
    from fedssl.experiment.progress.views import View


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

    def __init__(self, config: Config, backend: "Backend | None" = None) -> None:
        self.config, self.backend = config, backend  # None: this machine

    def __repr__(self) -> str:
        config = self.config
        clients = len(config.flower.clients) or config.partition.settings.get("num_clients") or "by the data"
        return (
            f"Experiment({config.method.name} with {config.update_rule.name} on {config.data.name}, "
            f"clients: {clients}, rounds: {'auto' if 'rounds' in config.automatic else config.run.rounds})"
        )

    def run(
        self,
        folder: Place,
        view: "View | None" = None,
        loggers: "Sequence[Logger]" = (),
        force: bool = False,
        observers: "Sequence[Observer]" = (),
    ) -> RunReport:
        """Trains, evaluates and writes the run folder; a run that was begun in it is resumed.

        Whenever it is stopped or killed, the same call resumes after the last finished round and ends with the same
        bits. `force` allows changes that do not touch what is done: rounds, evaluation, failures, threads, device.
        `observers` are called at the start, after every round and at the end; what one of them raises ends the run.

        >>> report = fedssl.load("smoke", {"rounds": 1}).run("runs/y")
        >>> report.summary["status"], report.summary["rounds"], sorted(report.summary["final"])[:1]
        ('finished', 1, ['backbone_std'])
        """
        # Here, so that `load` does not wait for what only training needs.
        from fedssl.experiment.starting import start_or_resume

        path = Path(folder)
        summary = start_or_resume(
            path, self.config, self.backend, view=view, loggers=loggers, force=force, observers=observers
        )
        return RunReport(path, summary)


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """An experiment from a preset or a TOML file, with settings on top.

    >>> import fedssl
    >>> fedssl.load("smoke+fedu", {"rounds": 2})
    Experiment(byol with fedu on synthetic, clients: 4, rounds: 2)
    """
    return Experiment(typed_config(name, overrides))
