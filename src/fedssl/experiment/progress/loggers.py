"""Numbers to TensorBoard, Weights & Biases or MLflow during a run; a package is needed only when asked for."""

import importlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from fedssl.core.checksums import signed_json
from fedssl.core.extras import EXTRAS, need
from fedssl.core.files import write_atomically
from fedssl.core.progress import Say
from fedssl.core.registry import Registry
from fedssl.experiment.config.texts import flatten, setting_text
from fedssl.experiment.observers import Observer, Start
from fedssl.experiment.records.metrics import metrics_of
from fedssl.experiment.records.run_record import read_json


class Logger(Protocol):
    """Receives what a run measures; never decides anything."""

    def start(self, folder: Path, config: dict[str, Any], done: int | None) -> None:
        """Before the first round, with the run folder, all settings, and the last round of a run that is resumed."""

    def log_round(self, record: dict[str, Any]) -> None:
        """After every round, with the line of rounds.jsonl; round 0 is the random encoder."""

    def finish(self, summary: dict[str, Any]) -> None:
        """At the end, also of an interrupted run, with the content of summary.json."""


class TensorBoardLogger:
    """Event files in RUN/tensorboard: `tensorboard --logdir runs`."""

    def __init__(self) -> None:
        self._make = _package("tensorboard").SummaryWriter

    def start(self, folder: Path, config: dict[str, Any], done: int | None) -> None:
        # What an earlier process logged of later rounds is hidden: they are run again.
        self._writer = self._make(log_dir=str(folder / "tensorboard"), purge_step=None if done is None else done + 1)
        settings = "\n".join(f"    {key} = {setting_text(value)}" for key, value in flatten(config).items())
        self._writer.add_text("config", settings)  # four blanks: code in TensorBoard's Markdown

    def log_round(self, record: dict[str, Any]) -> None:
        for name, value in _measured(record).items():
            self._writer.add_scalar(name, value, record["round"])
        for client in record["clients"]:
            for name in ("loss", "mu", "divergence", "feature_std"):
                if client.get(name) is not None:
                    self._writer.add_scalar(f"client {client['client']}/{name}", client[name], record["round"])
        self._writer.flush()

    def finish(self, summary: dict[str, Any]) -> None:
        self._writer.add_text("status", str(summary["status"]))
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases in the project `fedssl`; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self) -> None:
        self._wandb = _package("wandb")

    def start(self, folder: Path, config: dict[str, Any], done: int | None) -> None:
        known = _remembered(folder, "wandb") if done is not None else None
        again = {"id": known, "resume": "allow"} if known else {}
        self._run = self._wandb.init(
            project="fedssl", name=folder.name, dir=str(folder), config=flatten(config), **again
        )
        _remember(folder, "wandb", self._run.id)

    def log_round(self, record: dict[str, Any]) -> None:
        self._run.log(_measured(record), step=record["round"])

    def finish(self, summary: dict[str, Any]) -> None:
        self._run.summary.update(_numbers(summary) | {"status": summary["status"]})
        self._run.finish(exit_code=0 if summary["status"] == "finished" else 1)


class MlflowLogger:
    """A run of MLflow in the experiment `fedssl`; MLFLOW_TRACKING_URI says where."""

    def __init__(self) -> None:
        self._mlflow = _package("mlflow")

    def start(self, folder: Path, config: dict[str, Any], done: int | None) -> None:
        self._mlflow.set_experiment("fedssl")
        known = _remembered(folder, "mlflow") if done is not None else None
        run = self._mlflow.start_run(run_id=known) if known else self._mlflow.start_run(run_name=folder.name)
        _remember(folder, "mlflow", run.info.run_id)
        if not known:  # MLflow refuses a parameter that changes
            self._mlflow.log_params({key: setting_text(value) for key, value in flatten(config).items()})

    def log_round(self, record: dict[str, Any]) -> None:
        self._mlflow.log_metrics(_measured(record), step=record["round"])

    def finish(self, summary: dict[str, Any]) -> None:
        # A name of its own: MLflow would take "rounds" of the summary for one more point of a curve.
        self._mlflow.log_metrics({f"summary.{name}": value for name, value in _numbers(summary).items()})
        self._mlflow.end_run(status="FINISHED" if summary["status"] == "finished" else "KILLED")


LOGGERS: Registry[Callable[[], Logger]] = Registry(
    "loggers", "--logger", {"tensorboard": TensorBoardLogger, "wandb": WandbLogger, "mlflow": MlflowLogger}
)


def make_loggers(names: Iterable[str]) -> list[Logger]:
    """The loggers of these names; a package that is not installed is said now, not after the training."""
    return [LOGGERS.typed(name)() for name in names]


class Guarded(Observer):
    """Several loggers as one that cannot fail: what goes wrong is said once per logger, and the run continues."""

    def __init__(self, loggers: Iterable[Logger], say: Say) -> None:
        self._loggers, self._say = list(loggers), say
        self._reported: set[int] = set()

    def start(self, run: Start) -> None:
        self._each("start", run.folder, run.config.as_raw(), run.done)

    def round_finished(self, record: dict[str, Any], outcome: object) -> None:  # noqa: ARG002
        self._each("log_round", record)

    def finish(self, summary: dict[str, Any]) -> None:
        self._each("finish", summary)

    def _each(self, step: str, *values: Any) -> None:
        for number, logger in enumerate(self._loggers):
            try:
                getattr(logger, step)(*values)
            except Exception as error:  # a tracking server that is down must not cost a night of training
                if number not in self._reported:
                    self._reported.add(number)
                    name, text = type(logger).__name__, " ".join(str(error).split())
                    self._say(f"warning: {name} failed ({type(error).__name__}: {text}); the run continues")


def _package(extra: str) -> Any:
    need(extra, f"logger {extra}")
    return importlib.import_module(EXTRAS[extra][0])


def _remembered(folder: Path, logger: str) -> str | None:
    """Under which id an earlier process logged this run."""
    path = folder / "loggers.json"
    return read_json(path).get(logger) if path.exists() else None


def _remember(folder: Path, logger: str, run_id: str) -> None:
    path = folder / "loggers.json"
    known = read_json(path) if path.exists() else {}
    write_atomically(path, signed_json(json.dumps({**known, logger: run_id}, indent=1)))


def _measured(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics_of(record).items() if name != "round"}


def _numbers(summary: dict[str, Any]) -> dict[str, float]:
    """The numbers of a summary under dotted names."""
    flat = flatten({key: value for key, value in summary.items() if key not in ("data", "files")})
    return {key: value for key, value in flat.items() if isinstance(value, int | float) and not isinstance(value, bool)}
