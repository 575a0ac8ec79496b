"""Runs as tables in a terminal; in a pipe every line stays whole."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedssl.core.stopwatch import PARTS, UNKNOWN
from fedssl.experiment.records.run_record import RunRecord
from fedssl.experiment.records.verdict import MEASURES, accuracy, advice, continued, interval, verdict
from fedssl.reports.compare import SHORT, Row, evaluation_basis, parted, results, settings, site_lines, site_text
from fedssl.reports.listing import Listed

if TYPE_CHECKING:  # it needs torch, which lists and comparisons do without
    from fedssl.evaluation.results import Result

PIPE_WIDTH = 1000


def print_comparison(records: Sequence[RunRecord], *, everything: bool = False, console: Console | None = None) -> None:
    """Two tables, settings and results, one column per run; what is equal in all runs is folded unless asked for."""
    console = console or wide_console()
    names = [record.name for record in records]
    compared = {"Settings": settings([record.config for record in records]), "Results": results(records)}
    for title, rows in compared.items():
        differ, equal = (rows, []) if everything else parted(rows)
        if differ:
            console.print(_table(f"{title}{' that differ' if equal else ''}", names, differ))
        else:
            console.print(f"The {title.lower()} are the same in all runs.")
        if equal:
            console.print(f"{len(equal)} {title.lower()} are equal in all runs and not shown: --all shows them.")


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
    accuracies = ("kNN (95 % of the gain)", "linear (95 % of the gain)")
    head = ("run", "method + rule, data", "rounds", "status", "verdict", *accuracies, "time", "last written")
    rows = [head, *(tuple(vars(run).values()) for run in runs)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    styles = ["bold", *("" if run.what else "red" for run in runs)]
    for row, style in zip(rows, styles, strict=True):
        # A Table of rich would take as long as reading the runs.
        line = "   ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True))
        console.print(Text(line.rstrip(), style), soft_wrap=True)


def wide_console() -> Console:
    """As wide as the terminal; without one, wide enough that no line is cut, whatever COLUMNS says."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def print_summary(record: RunRecord) -> None:
    """What a run came to: accuracy before and after, the gain with its interval, mean mu, a verdict, where it is."""
    summary, console = record.summary, Console()
    table = Table(title="Result", title_justify="left")
    table.add_column("")
    for column in ("at the start" if record.own_start else "random encoder", "trained", "gain", "95 % interval"):
        table.add_column(column, justify="right")
    for measure, label in MEASURES.items():
        if gain := record.gain(measure):
            accuracies = [
                accuracy(best) + "*" * (best.batchnorm == "reestimated") for best in (gain.baseline, gain.trained)
            ]
            table.add_row(label, *accuracies, f"{100 * gain.difference:+.1f}", interval(gain))
    if "backbone_std" in summary["final"] and not MEASURES.keys() & summary["final"].keys():
        first, last = (summary[when]["backbone_std"] for when in ("initial", "final"))
        table.add_row("spread of features", f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}", "")
    if summary["mean_mu"] is not None:
        table.add_row("mean mu", "", f"{summary['mean_mu']:.3f}", "", "")
    console.print(table)
    _print_verdict(record, console)
    _print_sites(record, console)
    if "profile" in summary:
        _print_profile(summary["profile"])
    console.print(f"{summary['rounds']} rounds in {summary['seconds']:.0f} s; run folder: ", end="")
    console.print(str(record.path), style="bold", soft_wrap=True)


def _print_verdict(record: RunRecord, console: Console) -> None:
    judged = verdict(record)
    if judged is None:
        if record.summary.get("at_sites"):
            return
        console.print("No accuracy can be given without labelled test images (data.eval_test).", soft_wrap=True)
        return
    console.print("Each encoder in the BatchNorm mode that suits it better; *: re-estimated.", soft_wrap=True)
    console.print(Text.assemble("Verdict: ", (judged.word, "bold")))
    if kept := continued(record):
        console.print(Text.assemble("Continued: ", (kept.word, "bold"), f" ({kept.because})"), soft_wrap=True)
    for text in advice(record):
        console.print(Text(f"  to try: {text}"), soft_wrap=True)


def _print_sites(record: RunRecord, console: Console) -> None:
    lines = site_lines(record)
    if not lines:
        return
    table = Table(title="At the sites, the worst first (gain)", title_justify="left")
    table.add_column("")
    for column in ("test images", *SHORT.values()):
        table.add_column(column, justify="right")
    for one in lines:
        table.add_row(Text(one["knn"].title), f"{one['knn'].n:,}", *(site_text(one[name]) for name in SHORT))
    console.print(table)


def _print_profile(seconds: dict[str, float]) -> None:
    table = Table("", title="Where the time went", title_justify="left")
    for column in ("seconds", "share"):
        table.add_column(column, justify="right")
    for name, text in {**PARTS, UNKNOWN: "anything else", "wall": "in all"}.items():
        table.add_row(text, f"{seconds[name]:.1f}", f"{100 * seconds[name] / seconds['wall']:.1f} %")
    Console().print(table)


def headline_table(entries: list[dict[str, Any]]) -> Table:
    """What a person wants to know: accuracy with its interval or spread, for each encoder and protocol."""
    data, variant = entries[0]["data"], entries[0]["variant"]
    images = next((entry["n"] for entry in entries if entry["test_images"] == "all"), 0)
    seeds = max(entry["seeds"] for entry in entries)
    about = f"{variant} protocols" + (f", {seeds} seeds" if seeds > 1 else "")
    table = Table(title=f"Accuracy on {images:,} test images of {data} ({about})", title_justify="left")
    for column in ("encoder", "protocol", "BatchNorm"):
        table.add_column(column, no_wrap=True)
    for column in ("accuracy, %", "95 %, ± over"):
        table.add_column(column, justify="right", no_wrap=True)
    encoders = list(dict.fromkeys(_encoder(entry) for entry in entries))
    for entry in sorted(entries, key=lambda entry: (encoders.index(_encoder(entry)), entry["protocol"])):
        spread = "" if entry["sd"] is None else f" ± {100 * entry['sd']:.2f}"
        accuracy, basis = f"{100 * entry['accuracy']:.2f}{spread}", evaluation_basis(entry).removesuffix(" %")
        table.add_row(_encoder(entry), entry["protocol"], entry["batchnorm"], accuracy, basis)
    return table


def _encoder(entry: dict[str, Any]) -> str:
    return str(entry["encoder"]) + ("" if entry["test_images"] == "all" else ", own classes")


def clients_tables(results: list["Result"]) -> list[Table]:
    """For each protocol and BatchNorm mode: every client's encoder beside the global one, on all and on its classes."""
    accuracies: dict[tuple[str, str], dict[tuple[str, str], list[float]]] = {}
    for r in results:
        table = accuracies.setdefault((r.protocol, r.batchnorm), {})
        table.setdefault((r.encoder, r.test_images), []).append(100 * r.score.accuracy)
    return [_clients_table(f"{p}, BatchNorm {b}", cells) for (p, b), cells in accuracies.items() if len(cells) > 1]


def _clients_table(title: str, cells: dict[tuple[str, str], list[float]]) -> Table:
    table = Table(title=f"Client by client: {title}, accuracy in %", title_justify="left")
    for column in ("", "all, global", "all, own", "own classes, global", "own classes, own"):
        table.add_column(column, justify="right", no_wrap=True)
    for client in dict.fromkeys(encoder for encoder, _ in cells if encoder.startswith("client ")):
        own = f"classes of {client}"
        keys = (("global", "all"), (client, "all"), ("global", own), (client, own))
        table.add_row(client, *(f"{statistics.fmean(cells[key]):.2f}" if key in cells else "" for key in keys))
    return table
