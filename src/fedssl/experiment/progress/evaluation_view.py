"""Progress of an evaluation, a report or a forecast, with the time left: bars on a terminal, else lines; tables."""

import statistics
import sys
import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedssl.evaluation.results import Result

PLAIN_AFTER = 2.0  # seconds: shorter work is not worth a line


class EvaluationView:
    """Receives what happens; this one, for the Python API, says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def start(self, pieces: int, text: str = "evaluation") -> None:
        """Before the first piece of work: one encoder by one protocol with one seed, a figure, a measurement."""

    def watch(self, text: str, done: int, total: int | None) -> None:
        """How far the work named by the text is."""

    def found(self, result: Result) -> None: ...

    def finished_piece(self) -> None: ...


class PlainEvaluationView(EvaluationView):
    """A line for every result, and one for work that took a while."""

    def start(self, pieces: int, text: str = "evaluation") -> None:  # noqa: ARG002
        self.pieces, self.done, self.text = pieces, 0, ""
        self.started = self.work_started = time.monotonic()

    def watch(self, text: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if text != self.text:
            self.text, self.work_started = text, now
        if done == total and now - self.work_started > PLAIN_AFTER:
            print(f"{text}: {now - self.work_started:.0f} s", flush=True)

    def found(self, result: Result) -> None:
        print(describe(result), flush=True)

    def finished_piece(self) -> None:
        self.done += 1
        left = (time.monotonic() - self.started) / self.done * (self.pieces - self.done)
        if left > 10:
            print(f"{self.done} of {self.pieces} done, about {left:.0f} s left", flush=True)


class LiveEvaluationView(EvaluationView):
    """One bar over everything and one for the work at hand, with the time left; results scroll by above."""

    def __init__(self, console: Console | None = None) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        # By default rich forgets steps older than 30 s; one of ours may take minutes.
        self.bars = Progress(*columns, console=console or Console(), transient=True, speed_estimate_period=3600)

    def __enter__(self) -> Self:
        self.bars.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.bars.__exit__(None, None, None)

    def start(self, pieces: int, text: str = "evaluation") -> None:
        self.all = self.bars.add_task(text, total=pieces)
        self.work = self.bars.add_task("", total=None)
        self.text = ""

    def watch(self, text: str, done: int, total: int | None) -> None:
        if text != self.text:
            self.text = text
            self.bars.reset(self.work, description=text, total=total)
        self.bars.update(self.work, completed=done, total=total)

    def found(self, result: Result) -> None:
        self.bars.console.print(describe(result), highlight=False)

    def finished_piece(self) -> None:
        self.bars.advance(self.all)


def make_evaluation_view() -> EvaluationView:
    return LiveEvaluationView() if sys.stdout.isatty() else PlainEvaluationView()


def describe(result: Result) -> str:
    low, high = result.score.interval
    seed = "" if result.seed is None else f", seed {result.seed}"
    scope = "" if result.test_images == "all" else f", {result.test_images}"
    return (
        f"{result.encoder}: {result.protocol} ({result.variant}), BatchNorm {result.batchnorm}{scope}{seed}: "
        f"{100 * result.score.accuracy:.2f} % of {result.score.n} test images ({100 * low:.1f}–{100 * high:.1f})"
    )


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
        accuracy = f"{100 * entry['accuracy']:.2f}{spread}"
        table.add_row(_encoder(entry), entry["protocol"], entry["batchnorm"], accuracy, _basis(entry))
    return table


def _encoder(entry: dict[str, Any]) -> str:
    return str(entry["encoder"]) + ("" if entry["test_images"] == "all" else ", own classes")


def _basis(entry: dict[str, Any]) -> str:
    """What the number rests on: an interval over images, or a spread over clients or seeds."""
    if entry["interval_95"] is not None:
        low, high = entry["interval_95"]
        return f"{100 * low:.1f}–{100 * high:.1f}"
    return f"{entry['clients']} clients" if entry["clients"] else f"{entry['seeds']} seeds"


def clients_tables(results: list[Result]) -> list[Table]:
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
