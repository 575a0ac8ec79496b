"""Runs as tables in a terminal; in a pipe every line stays whole."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedssl.reports.compare import Row, differing_settings, results
from fedssl.reports.listing import Listed
from fedssl.reports.run_record import RunRecord

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
