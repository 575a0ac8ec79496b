"""What a person sees while something takes time, with the time left: bars on a terminal, lines elsewhere, or nothing.

One family for runs, evaluations, reports, downloads and queues of runs.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedssl.core.files import size_text

PROGRESS_SECONDS = 10.0  # between two lines of a plain view
WAITING_SECONDS = 30.0
SHORT = 10.0  # seconds: less time left is not worth a line


class View:
    """Receives what happens; never decides anything. What a view does not override it does not show."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def say(self, text: str) -> None:
        """A sentence to read."""

    def progress(self, text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
        """How far the work at hand is: images made ready, features, a download, the training steps of a client."""

    def waiting(self, text: str) -> None:
        """Again and again while others are awaited: who, and for how long."""

    def presence(self, clients: Mapping[int, str]) -> None:
        """Again and again while others are awaited: what each client does, one of "here", "working", "done", "away"."""

    def begin(self, text: str, pieces: float) -> None:
        """Before the first piece of a whole: results of an evaluation, figures of a report, runs of a queue."""

    def advance(self, by: float = 1, text: str = "") -> None:
        """After a piece, or a part of one; `text` says how far that is."""

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:
        """Before a run's first round, with the training steps that are left and the rounds that are done."""

    def round_finished(self, record: dict[str, Any]) -> None:
        """After every round of a run, with its line of rounds.jsonl."""


class PassingView(View):
    """Passes everything on to another view."""

    def __init__(self, view: View) -> None:
        self.view = view

    def __enter__(self) -> Self:
        self.view.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.view.__exit__(*details)

    def say(self, text: str) -> None:
        self.view.say(text)

    def progress(self, text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
        self.view.progress(text, done, total, client, images)

    def waiting(self, text: str) -> None:
        self.view.waiting(text)

    def presence(self, clients: Mapping[int, str]) -> None:
        self.view.presence(clients)

    def begin(self, text: str, pieces: float) -> None:
        self.view.begin(text, pieces)

    def advance(self, by: float = 1, text: str = "") -> None:
        self.view.advance(by, text)

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:
        self.view.start(title, rounds, steps, done)

    def round_finished(self, record: dict[str, Any]) -> None:
        self.view.round_finished(record)


class QuietView(View):
    """For the Python API: shows nothing."""


class PlainView(View):
    """Lines for logs and pipes: what is said, every round, and now and then how far anything else is."""

    def __init__(self, *, in_bytes: bool = False) -> None:
        self.amount = size_text if in_bytes else "{:,}".format
        self.spoken, self.work = time.monotonic(), ("", 0)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def progress(self, text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:  # noqa: ARG002
        if client is not None:
            return  # rounds have lines of their own
        now, (before, reached) = time.monotonic(), self.work
        if text != before or done < reached:
            self.work_began = self.spoken = now
        self.work = (text, done)
        if now - self.spoken > PROGRESS_SECONDS:
            left = _left(now - self.work_began, done, total or 0)
            of = f" of {self.amount(total)}" if total else ""
            self._say_again(f"{text}: {self.amount(done)}{of}" + (f", {_duration(left)} left" if left else ""))

    def waiting(self, text: str) -> None:
        if time.monotonic() - self.spoken > WAITING_SECONDS:
            self._say_again(text)

    def _say_again(self, text: str) -> None:
        self.spoken = time.monotonic()
        self.say(text)

    def begin(self, text: str, pieces: float) -> None:
        self.reached, self.pieces, self.done, self.began = text, pieces, 0.0, time.monotonic()

    def advance(self, by: float = 1, text: str = "") -> None:
        self.done += by
        text = text or f"{self.done:g} of {self.pieces:g} done"
        left = _left(time.monotonic() - self.began, self.done, self.pieces)
        if text != self.reached and left > SHORT:
            self.say(f"{text}, about {_duration(left)} left")
        self.reached = text

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:  # noqa: ARG002
        self.rounds, self.before, self.began = rounds, done, time.monotonic()
        self.say(title)

    def round_finished(self, record: dict[str, Any]) -> None:
        done = record["round"]
        if done == 0:
            self.began = time.monotonic()  # the first evaluation says nothing about the length of a round
        parts = [f"round {done}/{self.rounds}", *_facts(record)]
        if done > self.before:
            left = _left(time.monotonic() - self.began, done - self.before, self.rounds - self.before)
            parts += [*_speed(record), f"{_duration(left)} left"]
        self.say("  ".join(parts))


class LiveView(View):
    """A bar over the whole and one for the work at hand; what is said scrolls by above."""

    def __init__(self, console: Console | None = None, *, in_bytes: bool = False) -> None:
        self.amount = size_text if in_bytes else str
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[amount]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console or Console(),
            transient=True,
            speed_estimate_period=3600,  # by default rich forgets steps older than 30 s; one of ours may take minutes
        )
        self.work = self.bars.add_task("", total=None, amount="", visible=False)
        self.client_began, self.rate = 0.0, 0.0

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.bars.stop()

    def say(self, text: str) -> None:
        self.bars.console.print(text, markup=False, highlight=False)  # a text may hold what came from a client

    def progress(self, text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
        if client is not None:
            text, amount = f"client {client}", f"step {done}/{total}   {self._rate(done, images):,.0f} images/s"
            self.bars.advance(self.whole)
        else:
            amount = f"{self.amount(done)}/{self.amount(total) if total else '?'}"
        self._show(text, done, total, amount)

    def _rate(self, done: int, images: int) -> float:
        """Images per second since a client's first step, which may have warmed up."""
        now = time.monotonic()
        if done == 1:
            self.client_began = now
        elif now > self.client_began:
            self.rate = images * (1 - 1 / done) / (now - self.client_began)
        return self.rate

    def waiting(self, text: str) -> None:
        self._show(text, 0, None, "")

    def _show(self, text: str, done: int, total: int | None, amount: str) -> None:
        task = self.bars.tasks[-1]
        if text != task.description or done < task.completed or total != task.total:
            self.bars.remove_task(self.work)
            self.work = self.bars.add_task(text, total=total, amount=amount)
        self.bars.update(self.work, completed=done, amount=amount)

    def begin(self, text: str, pieces: float) -> None:
        self.pieces, self.done = pieces, 0.0
        self.bars.remove_task(self.work)
        self.whole = self.bars.add_task(text, total=pieces, amount="")
        self.work = self.bars.add_task("", total=None, amount="", visible=False)

    def advance(self, by: float = 1, text: str = "") -> None:
        self.done += by
        self.bars.update(self.whole, advance=by, description=text or f"{self.done:g} of {self.pieces:g} done")

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:
        self.rounds = rounds
        self.say(title)
        self.begin(f"round {done + 1}/{rounds}", steps)

    def round_finished(self, record: dict[str, Any]) -> None:
        self.bars.update(self.whole, description=f"round {min(record['round'] + 1, self.rounds)}/{self.rounds}")
        self.say("  ".join([f"round {record['round']}/{self.rounds}", *_facts(record), *_speed(record)]))


def make_view(*, in_bytes: bool = False) -> View:
    """Bars with the time left on a terminal, lines elsewhere: for `view=` of all that takes time.

    >>> report = fedssl.load("smoke", {"rounds": 1}).run("runs/shown", fedssl.make_view())  # doctest: +ELLIPSIS
    byol with fedema on synthetic...
    """
    return LiveView(in_bytes=in_bytes) if sys.stdout.isatty() else PlainView(in_bytes=in_bytes)


def _left(seconds: float, done: float, total: float) -> float:
    """Seconds that the rest will take at the speed so far; 0: nobody knows, or nothing is left."""
    return seconds / done * max(total - done, 0) if done > 0 else 0.0


def _speed(record: dict[str, Any]) -> list[str]:
    return [f"{record['images_per_second']:,.0f} images/s"] if record.get("images_per_second") else []


def _facts(record: dict[str, Any]) -> list[str]:
    facts = []
    if record["clients"]:
        if record.get("loss") is not None:
            facts.append(f"loss {record['loss']:.4f}")
        if record.get("mu") is not None:
            facts.append(f"mu {record['mu']:.3f}")
    if record.get("knn") is not None:
        facts.append(f"kNN {100 * record['knn']:.1f} %")
    elif record.get("backbone_std") is not None:
        facts.append(f"spread of features {record['backbone_std']:.3f}")
    return facts


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
