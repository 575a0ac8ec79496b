"""Runs as tables in a terminal; in a pipe every line stays whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedssl.reports.compare import Row, differing_settings, results
from fedssl.reports.listing import Listed
from fedssl.reports.run_record import RunRecord
from fedssl.stopwatch import PARTS, UNKNOWN

PIPE_WIDTH = 1000


def print_comparison(records: Sequence[RunRecord], console: Console | None = None) -> None:
    """Two tables: the settings that differ and the results, a column a run."""
    console = console or wide_console()
    names = [record.name for record in records]
    differing = differing_settings([record.config for record in records])
    if differing:
        console.print(_table("Settings that differ", names, differing))
    else:
        console.print("The settings are the same in all runs.")
    console.print(_table("Results", names, results(records)))


def _table(title: str, names: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(Text(name), justify="right", overflow="fold")
    for row in rows:
        table.add_row(row.label, *map(Text, row.values))  # Text: square brackets in a value are no markup
    return table


def print_list(runs: Sequence[Listed], console: Console | None = None) -> None:
    console = console or wide_console()
    if not runs:
        console.print("no runs here")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("run", "method + rule, data", "rounds", "status", "kNN", "linear", "time", "last written"):
        table.add_column(column, no_wrap=not console.is_terminal, overflow="fold")
    for run in runs:
        broken = not run.what
        cells = [Text(text, style="red" if broken else "") for text in vars(run).values()]
        table.add_row(*cells)
    console.print(table)


def wide_console() -> Console:
    """As wide as the terminal; without one, wide enough that no line is cut, whatever COLUMNS says."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """What a run came to: first and last accuracy, mean mu, and where it is."""
    table = Table(title="Result", title_justify="left")
    table.add_column("")
    for column in ("at the start" if "init" in summary else "random init", "trained", "gain"):
        table.add_column(column, justify="right")
    names = {
        "knn": "kNN accuracy",
        "knn_reestimated": "kNN, BatchNorm re-estimated",
        "linear": "linear probe",
        "linear_reestimated": "linear probe, BatchNorm re-estimated",
    }
    for key, label in names.items():
        if key in summary["final"]:
            first, last = summary["initial"][key], summary["final"][key]
            spread = f" ± {100 * summary['final'][key + '_sd']:.1f}" if key + "_sd" in summary["final"] else ""
            table.add_row(label, f"{100 * first:.1f} %", f"{100 * last:.1f}{spread} %", f"{100 * (last - first):+.1f}")
    if "backbone_std" in summary["final"] and "knn" not in summary["final"]:
        first, last = (summary[when]["backbone_std"] for when in ("initial", "final"))
        table.add_row("spread of features", f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}")
    if summary["mean_mu"] is not None:
        table.add_row("mean mu", "", f"{summary['mean_mu']:.3f}", "")
    console = Console()
    console.print(table)
    if "knn" not in summary["final"]:
        console.print("No accuracy can be given without labelled test images (data.eval_test).", soft_wrap=True)
    if "profile" in summary:
        _print_profile(summary["profile"])
    console.print(f"{summary['rounds']} rounds in {summary['seconds']:.0f} s; run folder: ", end="")
    console.print(str(folder), style="bold", soft_wrap=True)


def _print_profile(seconds: dict[str, float]) -> None:
    table = Table("", title="Where the time went", title_justify="left")
    for column in ("seconds", "share"):
        table.add_column(column, justify="right")
    for name, text in {**PARTS, UNKNOWN: "anything else", "wall": "in all"}.items():
        table.add_row(text, f"{seconds[name]:.1f}", f"{100 * seconds[name] / seconds['wall']:.1f} %")
    Console().print(table)
