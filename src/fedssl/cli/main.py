"""The `fedssl` command, put together; what may be named in settings; errors as one line and an exit code."""

import sys
from typing import Annotated

import typer
import typer.core

from fedssl import __version__
from fedssl.cli import deployment
from fedssl.cli.bench import bench_app
from fedssl.cli.client import client_app
from fedssl.cli.data import data_app
from fedssl.cli.encoders import encoders_app
from fedssl.cli.paper import paper_app
from fedssl.cli.registries import print_one, print_registry, print_short
from fedssl.cli.reports import reports_app
from fedssl.cli.runs import runs_app
from fedssl.core.errors import FedsslError

typer.core.HAS_RICH = False  # help is plain text here; with rich typer writes "\[required]"
app = typer.Typer(
    help="Federated self-supervised learning: one image encoder from unlabelled images that stay where they are.\n\n"
    "Start with `fedssl run smoke` (seconds), then `fedssl run cifar10-cpu` (minutes).",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(runs_app)
app.add_typer(encoders_app)
app.add_typer(reports_app)
app.add_typer(data_app, name="data")
app.add_typer(paper_app, name="paper")
app.add_typer(bench_app, name="bench")
app.add_typer(deployment.deployment_app)
app.add_typer(client_app, name="client")
app.add_typer(deployment.certificates_app, name="certificates")


def _show_version(given: bool) -> None:
    if given:
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
def presets() -> None:
    """List the presets, and the algorithms that can be put behind any of them with a plus sign."""
    from fedssl.experiment.config.preset_files import preset_description, preset_names

    _print_list("Presets (fedssl run PRESET)", {name: preset_description(name) for name in preset_names()})
    algorithms = {f"+{name}": preset_description(name, "algorithms") for name in preset_names("algorithms")}
    _print_list("Algorithms (fedssl run PRESET+ALGORITHM, e.g. cifar10-noniid+fedu)", algorithms)


@app.command()
def networks() -> None:
    """List the networks with their settings ([network] in a config)."""
    print_registry("network")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one with its settings.")] = None,
) -> None:
    """List the self-supervised methods: what each does and needs, what leaves the client; of one also its settings."""
    if name:
        print_one("method", name, "fedssl methods")
    else:
        print_short("method", "fedssl methods")


@app.command()
def rules() -> None:
    """List the update rules with their settings ([update_rule] in a config)."""
    print_registry("update_rule")


@app.command()
def aggregators() -> None:
    """List the aggregators, some tolerate Byzantine clients, with their settings ([aggregation] in a config)."""
    print_registry("aggregation")


@app.command()
def privacy() -> None:
    """List the kinds of differential privacy with their settings ([privacy] in a config)."""
    print_registry("privacy")


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


def main() -> None:
    """Entry point: what goes wrong is one line and an exit code (2 input, 3 damaged, 4 round, 5 disk), no traceback."""
    try:
        app()
    except FedsslError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
