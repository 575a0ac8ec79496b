"""The commands that train: run, and the demo."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedssl.cli.data import fetch_with_bar
from fedssl.cli.options import Force, Preset, Settings
from fedssl.cli.reports import write
from fedssl.core.errors import FedsslError

runs_app = typer.Typer()


@runs_app.command()
def run(
    preset: Preset,
    settings: Settings = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, in-process, processes or flower; the same as --set engine=…")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="run folder; a run begun there is resumed  [default: runs/PRESET-TIME]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="start anew, beside --out if that is taken")] = False,
    force: Force = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="write where the time of each round goes, for the report too")
    ] = False,
    logger: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="also log to NAME, which may be your own package.module:Name; may be repeated"
        ),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="also write event files for TensorBoard")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="also log to Weights & Biases")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="also log to MLflow")] = False,
) -> None:
    """Train: federated rounds with evaluation, into a run folder.

    A run that was stopped or killed resumes after its last finished round when the same command is given again, and
    ends with the same bits.

    Examples:

      fedssl run smoke

      fedssl run cifar10-cpu+fedbyol --set rounds=30 --out runs/byol

      fedssl run cifar10-noniid --set update_rule.tau=0.5 --set seed=1
    """
    from fedssl.experiment.config.layers import parse_override

    flags = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    overrides = dict(parse_override(text) for text in settings or []) | ({"profile": True} if profile else {})
    overrides |= {"engine": engine} if engine else {}
    folder = out or _new_folder(Path(preset).stem)
    loggers = dict.fromkeys([*(name for name, on in flags.items() if on), *(logger or [])])
    _train(preset, overrides, _beside(folder) if fresh else folder, list(loggers), force)


@runs_app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="run folder; a demo that was stopped is resumed  [default: runs/demo-TIME]")
    ] = None,
) -> None:
    """The main job in a few minutes: FedEMA on real CIFAR-10, five clients with two classes each, on a CPU.

    Fetches CIFAR-10 if it is not in the cache; when nothing can be fetched it says so and uses synthetic images.
    """
    overrides: dict[str, Any] = {}
    try:
        fetch_with_bar("cifar10", None)
    except FedsslError as error:
        typer.secho(
            f"{error}\nThe demo continues with SYNTHETIC images: its numbers say nothing about CIFAR-10.", fg="yellow"
        )
        overrides = {"data.name": "synthetic", "data.train_images": 10000, "data.test_images": 2000}
    folder = out or _new_folder("demo")
    _train("cifar10-cpu", overrides, folder)
    write([folder], folder / "report.html")


def _train(
    preset: str, overrides: dict[str, Any], folder: Path, loggers: Sequence[str] = (), force: bool = False
) -> None:
    from fedssl.experiment.experiment import load
    from fedssl.experiment.progress.loggers import make_loggers
    from fedssl.experiment.progress.stopping import StoppableView, StopRequest
    from fedssl.experiment.progress.views import make_view
    from fedssl.experiment.records.run_record import RunRecord
    from fedssl.reports.tables import print_summary

    experiment = load(preset, overrides)
    with StopRequest() as request:
        try:
            report = experiment.run(folder, StoppableView(make_view(), request), make_loggers(loggers), force)
        except (KeyboardInterrupt, OSError) as error:
            if request.signal is None and isinstance(error, OSError):
                raise  # else a line to a terminal that was closed at this moment
            again = f"the same command with --out {folder} resumes it"
            typer.echo(f"stopped: the finished rounds are in {folder}; {again}", err=True)
            raise typer.Exit(request.exit_code) from None
    print_summary(RunRecord.read(report.folder))


def _new_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"


def _beside(folder: Path) -> Path:
    """The folder, or the first free name after it: nothing is ever deleted."""
    number, free = 2, folder
    while free.exists():
        number, free = number + 1, folder.with_name(f"{folder.name}-{number}")
    return free
