"""The commands that show how runs go and what they came to: watch, report, compare, ls."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import AllowCode, Runs
from fedssl.core.errors import FedsslError

reports_app = typer.Typer()
WATCH_PORT = 8765


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
    import torch

    from fedssl.experiment.progress.views import make_view
    from fedssl.reports.run_page import write_report

    torch.set_num_threads(1)  # on matrices this small more threads mostly wait for each other
    left_out = write_report(
        runs, out, images=images, say=partial(typer.echo, err=True), view=make_view(), allow_code=allow_code
    )
    for line in left_out:
        typer.secho(f"left out: {line}", fg="yellow")
    typer.echo(f"report: {out}")


@reports_app.command()
def watch(
    runs: Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = WATCH_PORT,
    host: Annotated[str, typer.Option(help="address to listen on; another than this machine's own needs --token")] = "",
    token: Annotated[
        str, typer.Option(envvar="FEDSSL_WATCH_TOKEN", help="what a browser must show, 16 or more letters and digits")
    ] = "",
) -> None:
    """A web page of runs that are under way or over, which updates itself: rounds, time left, who is awaited, curves.

    It only reads, and only this machine can open it unless --host and --token are given. Ctrl-C ends it, not the runs.

    Examples:

      fedssl watch runs/hospitals

      fedssl watch runs/fedema runs/fedbyol --port 8080
    """
    import threading

    from fedssl.experiment.progress.stopping import StopRequest
    from fedssl.reports.watch import LOOPBACK, WatchServer

    with WatchServer(runs, host=host or LOOPBACK[0], port=port, token=token) as server, StopRequest(held_back=0):
        if server.token:
            typer.echo("note: the page is not encrypted: use it inside a network you trust, or through a TLS proxy")
        typer.echo(f"open {server.url}{'?token=…' if token else ''} in a browser; Ctrl-C ends the page, not the runs")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            typer.echo("the page is closed", err=True)


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
