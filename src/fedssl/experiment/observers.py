"""Who watches a run: the one contract of its totals, loggers, health warnings, view and profile."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.federation.privacy.accounting import privacy_text

if TYPE_CHECKING:
    from fedssl.experiment.config.schema import Config
    from fedssl.experiment.progress.views import View
    from fedssl.federation.rounds import Round


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run stands before its next round."""

    folder: Path
    config: "Config"
    title: str
    steps: int  # of training that are left
    notes: list[str]  # warnings and remarks
    done: int | None  # the last round of a run that is resumed
    recorded: list[dict[str, Any]]  # the records of the rounds until then


class Observer:
    """Sees what a run does. Override what you need; only a view, or an observer of the caller, ends a run by raising.

    >>> class Curve(fedssl.Observer):
    ...     def round_finished(self, record, outcome):
    ...         print(record["round"], record["knn"] > 0)
    >>> report = fedssl.load("smoke", {"rounds": 1}).run("runs/observed", observers=[Curve()])
    0 True
    1 True
    """

    def start(self, run: Start) -> None:
        """Before the first round of this process."""

    def round_finished(self, record: dict[str, Any], outcome: "Round | None") -> None:
        """When a round is recorded and saved; round 0, the encoder before training, has no outcome."""

    def finish(self, summary: dict[str, Any]) -> None:
        """At the end, also of an interrupted run, with the content of summary.json."""


class Shown(Observer):
    """Lets a view show the run."""

    def __init__(self, view: "View") -> None:
        self.view = view

    def start(self, run: Start) -> None:
        self.view.start(run.title, run.config.run.rounds, run.steps, run.done or 0)
        for note in run.notes:
            self.view.say(note)
        if run.done is not None:
            self.view.say(f"resumes after round {run.done}")

    def round_finished(self, record: dict[str, Any], outcome: "Round | None") -> None:  # noqa: ARG002
        self.view.round_finished(record)

    def finish(self, summary: dict[str, Any]) -> None:
        if "privacy" in summary:
            self.view.say(f"note: {privacy_text(summary['privacy'])}")
