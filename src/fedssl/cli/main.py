"""The `fedssl` command; thin: it parses, calls the library and prints."""

import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedssl import __version__
from fedssl.cli import deployment as cli_deployment
from fedssl.cli.completion import complete_preset, complete_run
from fedssl.cli.data import data_app, fetch_with_bar
from fedssl.cli.encoders import AllowCode, export_app
from fedssl.cli.paper import paper_app
from fedssl.core.errors import FedsslError

app = typer.Typer(
    help="Federated self-supervised learning: one image encoder from unlabelled images that stay where they are.\n\n"
    "Start with `fedssl run smoke` (seconds), then `fedssl run cifar10-cpu` (minutes).",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(paper_app, name="paper")
app.add_typer(export_app)
app.add_typer(cli_deployment.certificates_app, name="certificates")
app.command("server")(cli_deployment.server)
app.command("client")(cli_deployment.client)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedssl {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    preset: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE",
            help="a preset, PRESET+ALGORITHM, or a .toml file",
            autocompletion=complete_preset,
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a setting; may be repeated")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, in-process, processes or flower; the same as --set engine=…")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="run folder; a run begun there is resumed  [default: runs/PRESET-TIME]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="start anew, beside --out if that is taken")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="resume although rounds, evaluation, failures or threads were changed")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="write where the time of each round goes, for the report too")
    ] = False,
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

    asked = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    overrides = dict(parse_override(text) for text in settings or []) | ({"profile": True} if profile else {})
    overrides |= {"engine": engine} if engine else {}
    folder = out or _new_folder(Path(preset).stem)
    loggers = [name for name, on in asked.items() if on]
    _train(preset, overrides, _beside(folder) if fresh else folder, loggers, force)


@app.command()
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
    _write_report([folder], folder / "report.html")


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


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder", autocompletion=complete_run)],
    protocol: Annotated[str, typer.Option(help="any of knn, linear, semi-1, semi-10, with commas")] = "knn,linear",
    variant: Annotated[str, typer.Option(help="paper, or authors: as their published code does it")] = "paper",
    seeds: Annotated[int, typer.Option(help="repeat what draws random numbers with this many seeds")] = 1,
    batchnorm: Annotated[
        str | None, typer.Option(help="running, reestimated or both  [default: both; semi-*: running]")
    ] = None,
    data: Annotated[str | None, typer.Option(help="another dataset than the run's: transfer")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a setting of --data; may be repeated")
    ] = None,
    baseline: Annotated[str, typer.Option(help="random, supervised or both with a comma")] = "",
    clients: Annotated[
        bool, typer.Option("--clients", help="each client's own encoder too, and on its own classes")
    ] = False,
    epochs: Annotated[
        str, typer.Option(help="NUMBER for all that trains, or linear=N,semi=N,supervised=N  [default: 200, 100, 100]")
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="keep features in the run folder")] = True,
    allow_code: AllowCode = None,
) -> None:
    """How good a run's encoder is: kNN, linear probe, semi-supervised fine-tuning, on this or other data.

    Examples:

      fedssl evaluate runs/x

      fedssl evaluate runs/x --protocol linear,semi-10 --seeds 3 --baseline random

      fedssl evaluate runs/x --data cifar100 --protocol linear

      fedssl evaluate runs/x --clients --protocol linear --batchnorm running
    """
    from fedssl.encoders.evaluate import Request
    from fedssl.encoders.evaluate.request import parse_epochs, parse_names, parse_settings

    request = Request(
        protocols=parse_names(protocol),
        variant=variant,  # type: ignore[arg-type]  # checked by the request
        seeds=seeds,
        batchnorm=batchnorm,  # type: ignore[arg-type]
        data=data,
        data_settings=parse_settings(settings or []),
        baselines=parse_names(baseline),
        clients=clients,
        epochs=parse_epochs(epochs),
        device=device,
        cache=cache,
    )
    _evaluate(folder, request, allow_code or ())


def _evaluate(folder: Path, request: Any, allow_code: Sequence[str]) -> None:
    from rich.console import Console

    from fedssl.encoders.evaluate import evaluate as evaluate_run
    from fedssl.evaluation.results import headline
    from fedssl.experiment.progress.views import make_view
    from fedssl.reports.tables import clients_tables, headline_table

    try:
        results = evaluate_run(folder, request, make_view(), allow_code)
    except KeyboardInterrupt:
        typer.echo(f"stopped: the results so far are in {folder / 'evaluation.jsonl'}", err=True)
        raise typer.Exit(130) from None
    console = Console()
    console.print(headline_table(headline(results)), *(clients_tables(results) if request.clients else []), sep="\n")
    typer.echo(f"every result: {folder / 'evaluation.jsonl'}")


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="run folders; several are shown side by side", autocompletion=complete_run),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="the file  [default: report.html in the run]")] = None,
    images: Annotated[
        int, typer.Option(min=0, help="test images to look at; 0 leaves out what needs images and encoders")
    ] = 10_000,
    allow_code: AllowCode = None,
) -> None:
    """One HTML file with all that happened in a run, for people who were not there; opens without a network.

    Examples:

      fedssl report runs/demo

      fedssl report runs/fedema runs/fedbyol -o report.html
    """
    if out is None and len(runs) > 1:
        raise FedsslError("several runs, one report: say where to write it with -o report.html")
    _write_report(runs, out or runs[0] / "report.html", images, allow_code or ())


def _write_report(runs: list[Path], out: Path, images: int = 10_000, allow_code: Sequence[str] = ()) -> None:
    from fedssl.experiment.progress.views import make_view
    from fedssl.reports.run_page import write_report

    left_out = write_report(
        runs, out, images=images, say=partial(typer.echo, err=True), view=make_view(), allow_code=allow_code
    )
    for line in left_out:
        typer.secho(f"left out: {line}", fg="yellow")
    typer.echo(f"report: {out}")


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="two or more run folders", autocompletion=complete_run)
    ],
    everything: Annotated[bool, typer.Option("--all", help="also what is equal in all runs")] = False,
) -> None:
    """The settings and results that differ between runs, as tables."""
    from fedssl.experiment.records.run_record import RunRecord
    from fedssl.reports.tables import print_comparison

    print_comparison([RunRecord.read(path) for path in runs], everything=everything)


@app.command("ls")
def list_folder(
    folder: Annotated[Path, typer.Argument(help="a folder with run folders in it")] = Path("runs"),
) -> None:
    """The runs in a folder, one line each."""
    from fedssl.reports.listing import list_runs
    from fedssl.reports.tables import print_list

    print_list(list_runs(folder))


@app.command()
def presets() -> None:
    """List the presets, and the algorithms that can be put behind any of them with a plus sign."""
    from fedssl.experiment.config.layers import preset_description, preset_names

    _print_list("Presets (fedssl run PRESET)", {name: preset_description(name) for name in preset_names()})
    algorithms = {f"+{name}": preset_description(name, "algorithms") for name in preset_names("algorithms")}
    _print_list("Algorithms (fedssl run PRESET+ALGORITHM, e.g. cifar10-noniid+fedu)", algorithms)


@app.command()
def networks() -> None:
    """List the networks with their settings ([network] in a config)."""
    from fedssl.experiment.config.schema import Network
    from fedssl.networks.backbones import BACKBONES

    _print_registry("network", BACKBONES, Network)


@app.command()
def methods() -> None:
    """List the self-supervised methods with their settings ([method] in a config)."""
    from fedssl.methods import METHODS

    leaves = {name: f"FEATURES LEAVE THE CLIENT: {entry.leaves}" for name, entry in METHODS.items() if entry.leaves}
    _print_registry("method", METHODS, warnings=leaves)


@app.command()
def rules() -> None:
    """List the update rules with their settings ([update_rule] in a config)."""
    from fedssl.federation.model_communication import UPDATE_RULES

    _print_registry("update_rule", UPDATE_RULES)


@app.command()
def aggregators() -> None:
    """List the aggregators, some tolerate Byzantine clients, with their settings ([aggregation] in a config)."""
    from fedssl.experiment.config.schema import Uploads
    from fedssl.federation.robust_aggregation import AGGREGATORS

    _print_registry("aggregation", AGGREGATORS, Uploads)


@app.command()
def privacy() -> None:
    """List the kinds of differential privacy with their settings ([privacy] in a config)."""
    from fedssl.federation.privacy.mechanism import PRIVACY

    _print_registry("privacy", PRIVACY)


def _print_list(title: str, rows: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(f"  {name}", text)
    console = Console()
    console.print(title, style="bold")
    console.print(table)
    console.print()


def _print_registry(table: str, registry: Any, common: Any = None, warnings: dict[str, str] | None = None) -> None:
    from fedssl.core.settings import summary_of
    from fedssl.experiment.config.messages import describe_settings

    for name, factory in {**registry, **({"with any of them": common} if common else {})}.items():
        typer.secho(name, bold=True, nl=False)
        typer.echo(f"  {summary_of(factory)}")
        if warnings and name in warnings:
            typer.secho(f"    {warnings[name]}", fg="yellow")
        for key, (expected, default) in describe_settings(factory).items():
            typer.echo(f"    {table}.{key} = {default}   ({expected})")
    for name, path in registry.installed.items():  # listed, not imported
        typer.secho(name, bold=True, nl=False)
        typer.echo(f"  of an installed package ({path})")


def main() -> None:
    """Entry point: what goes wrong is one line and an exit code (2 input, 3 damaged, 4 round, 5 disk), no traceback."""
    try:
        app()
    except FedsslError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
