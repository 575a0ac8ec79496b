"""Experiments of the paper in a terminal: lists, plans and results."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedssl.core.files import free_bytes, size_text
from fedssl.paper.catalogue import Study
from fedssl.paper.comparison import Comparison
from fedssl.paper.forecast import Forecast
from fedssl.paper.page import scale_tables
from fedssl.paper.plan import Plan, PlannedRun
from fedssl.paper.scales import Scale, load_scales
from fedssl.reports.compare import duration
from fedssl.reports.page import TablePart
from fedssl.reports.tables import wide_console

MOST_NAMED = 4


def print_studies(studies: Iterable[Study]) -> None:
    console = wide_console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("experiment", "in the paper", "rows x columns", "what it shows"):
        table.add_column(column, overflow="fold", no_wrap=not console.is_terminal)
    for study in studies:
        table.add_row(study.name, study.number, f"{len(study.rows)} x {len(study.columns)}", study.shows)
    console.print(table)
    console.print("Scales (--scale), see `fedssl paper scales`:", style="bold")
    for scale in load_scales().values():
        console.print(f"  {scale.name}: {scale.title}", soft_wrap=True)


def print_scale(scale: Scale) -> None:
    console = wide_console()
    console.print(f"{scale.name}: {scale.title}", style="bold", soft_wrap=True)
    for table in scale_tables(scale):
        console.print(_table(table))


def _table(part: TablePart) -> Table:
    table = Table(title=part.caption, title_justify="left", box=box.SIMPLE_HEAD)
    for text in part.head:
        table.add_column(Text(text), overflow="fold")
    for row in part.rows:
        table.add_row(*map(Text, row))
    return table


def print_comparison(comparison: Comparison) -> None:
    console = wide_console()
    console.print(comparison.study.title, style="bold")
    for text in comparison.sentences():
        console.print(Text(text), soft_wrap=True)
    for table in comparison.tables():
        console.print(_table(table))
    for title, lines in comparison.notes().items():
        console.print(Text(f"{title} ({len(lines)}):"))
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)


def print_plan(plan: Plan, forecast: Forecast, jobs: int) -> None:
    """The runs with what each will take, measured here, and the sum of those that are not finished."""
    console, todo = wide_console(), {run.key for run in plan.unfinished()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("run", "for", "rounds", "images trained on", "time", "disk", "state"):
        table.add_column(column, overflow="fold", no_wrap=not console.is_terminal)
    seconds = disk = images = longest = 0.0
    for run in plan.runs.values():
        expected, open_ = forecast.of(run), run.key in todo
        seconds, disk = seconds + open_ * expected.seconds, disk + open_ * expected.disk
        images, longest = images + open_ * expected.images, max(longest, open_ * expected.seconds)
        state = "to do" if open_ and not run.folder.exists() else "to resume" if open_ else "finished"
        facts = (str(run.config.run.rounds), f"{expected.images:,}", duration(expected.seconds))
        table.add_row(run.name, _cells(run), *facts, size_text(expected.disk), state)
    console.print(table)
    _print_left_out(plan, console)
    side_by_side = duration(max(seconds / jobs, longest))
    console.print(
        f"{len(todo)} of {len(plan.runs)} runs to do: {images:,.0f} images trained on, {duration(seconds)} of one "
        f"{forecast.device} (about {side_by_side} with {jobs} at a time), {size_text(disk)} of disk "
        f"({size_text(free_bytes(plan.folder))} free), {size_text(forecast.peak_memory())} of memory each.",
        soft_wrap=True,
    )
    console.print("Measured on this device with a few steps of each distinct network; evaluations are estimates.")
    print_scale(plan.scale)


def _cells(run: PlannedRun) -> str:
    shown = "; ".join(run.cells[:MOST_NAMED])
    return f"{shown}; {len(run.cells) - MOST_NAMED} more" if len(run.cells) > MOST_NAMED else shown


def _print_left_out(plan: Plan, console: Console) -> None:
    by_reason: dict[str, list[str]] = {}
    for cell, reason in plan.left_out:
        by_reason.setdefault(reason, []).append(cell.title)
    for reason, cells in by_reason.items():
        console.print(Text(f"left out: {reason} ({len(cells)} cells, first: {cells[0]})"), soft_wrap=True)
