"""The commands that show what runs came to: report, compare, ls."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import AllowCode, Runs
from fedssl.core.errors import FedsslError

reports_app = typer.Typer()


@reports_app.command()
def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="the file  [default: report.html in the run]")] = None,
    images: Annotated[
        int, typer.Option(min=0, help="test images to look at; 0 leaves out what needs images and encoders")
    ] = 4_000,
    allow_code: AllowCode = None,
) -> None:
    """One HTML file with all that happened in a run, for people who were not there; opens without a network.

    Examples:

      fedssl report runs/demo

      fedssl report runs/fedema runs/fedbyol -o report.html
    """
    if out is None and len(runs) > 1:
        raise FedsslError("several runs, one report: say where to write it with -o report.html")
    write(runs, out or runs[0] / "report.html", images, allow_code or ())


def write(runs: list[Path], out: Path, images: int = 4_000, allow_code: Sequence[str] = ()) -> None:
    from fedssl.experiment.progress.views import make_view
    from fedssl.reports.run_page import write_report

    left_out = write_report(
        runs, out, images=images, say=partial(typer.echo, err=True), view=make_view(), allow_code=allow_code
    )
    for line in left_out:
        typer.secho(f"left out: {line}", fg="yellow")
    typer.echo(f"report: {out}")


@reports_app.command()
def compare(
    runs: Runs,
    everything: Annotated[bool, typer.Option("--all", help="also what is equal in all runs")] = False,
) -> None:
    """The settings and results that differ between runs, as tables."""
    from fedssl.experiment.records.run_record import RunRecord
    from fedssl.reports.tables import print_comparison

    print_comparison([RunRecord.read(path) for path in runs], everything=everything)


@reports_app.command("ls")
def list_folder(
    folder: Annotated[Path, typer.Argument(help="a folder with run folders in it")] = Path("runs"),
) -> None:
    """The runs in a folder, one line each."""
    from fedssl.reports.listing import list_runs
    from fedssl.reports.tables import print_list

    print_list(list_runs(folder))
