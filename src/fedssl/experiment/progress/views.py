"""Progress of a run: one live view on a terminal, plain lines elsewhere, or nothing."""

import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PREPARING_SECONDS = 5.0  # between two lines of a plain view
WAITING_SECONDS = 30.0


class View(Protocol):
    """Receives what happens; never decides anything."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def preparing(self, text: str, done: int, total: int | None) -> None:
        """While images are made ready, before all else: how far that is."""

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:
        """Before the first round, with the training steps that are left and the rounds that are done."""

    def step(self, client_id: int, done: int, total: int, images: int) -> None:
        """After every training step of a client: counts inside its round."""

    def evaluating(self, text: str, done: int, total: int | None) -> None:
        """While an encoder is evaluated: what is being done, and how much of it."""

    def waiting(self, text: str) -> None:
        """Again and again while others are awaited: who, and for how long."""

    def round_finished(self, record: dict[str, Any]) -> None: ...
    def say(self, text: str) -> None: ...


class QuietView:
    """For the Python API: says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def preparing(self, text: str, done: int, total: int | None) -> None:
        pass

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:
        pass

    def step(self, client_id: int, done: int, total: int, images: int) -> None:
        pass

    def evaluating(self, text: str, done: int, total: int | None) -> None:
        pass

    def waiting(self, text: str) -> None:
        pass

    def round_finished(self, record: dict[str, Any]) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class PlainView(QuietView):
    """One line a round, for logs and pipes, with the time left."""

    def __init__(self) -> None:
        self.spoken = time.monotonic()

    def preparing(self, text: str, done: int, total: int | None) -> None:
        if time.monotonic() - self.spoken > PREPARING_SECONDS:
            self.spoken = time.monotonic()
            self.say(f"{text}: {done:,}" + (f" of {total:,}" if total else ""))

    def waiting(self, text: str) -> None:
        if time.monotonic() - self.spoken > WAITING_SECONDS:
            self.spoken = time.monotonic()
            self.say(text)

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:  # noqa: ARG002
        self.rounds, self.done, self.started = rounds, done, time.monotonic()
        self.say(title)

    def round_finished(self, record: dict[str, Any]) -> None:
        done = record["round"]
        if done == 0:
            self.started = time.monotonic()  # the first evaluation says nothing about the length of a round
        here = done - self.done  # rounds of this process
        left = (time.monotonic() - self.started) / here * (self.rounds - done) if here else None
        parts = [f"round {done}/{self.rounds}", *_facts(record)]
        if left is not None:
            parts += [*_speed(record), f"{_duration(left)} left"]
        self.say("  ".join(parts))

    def say(self, text: str) -> None:
        print(text, flush=True)


class LiveView(QuietView):
    """Round, client, loss, images/s, kNN, and a bar over the whole run with the time left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self.console,
        )
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)
        self.last: dict[str, Any] = {"round": 0, "clients": []}
        self.client_started, self.rate = 0.0, 0.0
        self.doing = ""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.images_bar = Progress(*columns, console=self.console)

    def __enter__(self) -> Self:
        self.live.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.live.__exit__(None, None, None)

    def preparing(self, text: str, done: int, total: int | None) -> None:
        working = [task.id for task in self.images_bar.tasks if task.description == text and not task.finished]
        task = working[0] if working else self.images_bar.add_task(text, total=total)
        self.images_bar.update(task, completed=done, total=total)
        self.live.update(self.images_bar)

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:
        self.rounds = rounds
        self.live.update("")
        self.say(title)
        self.task = self.bar.add_task(f"round {done + 1}/{rounds}", total=steps)
        self._show()

    def step(self, client_id: int, done: int, total: int, images: int) -> None:
        now = time.monotonic()
        if done == 1:
            self.client_started = now
        elif now > self.client_started:
            self.rate = images * (1 - 1 / done) / (now - self.client_started)
        self.doing = f"client {client_id}   step {done}/{total}   {self.rate:,.0f} images/s"
        self.bar.advance(self.task)
        self._show()

    def evaluating(self, text: str, done: int, total: int | None) -> None:
        self.doing = f"evaluation: {text} {done}/{total}"
        self._show()

    def waiting(self, text: str) -> None:
        self.doing = text
        self._show()

    def round_finished(self, record: dict[str, Any]) -> None:
        self.last = record
        self.bar.update(self.task, description=f"round {min(record['round'] + 1, self.rounds)}/{self.rounds}")
        self.live.console.print("  ".join([f"round {record['round']}/{self.rounds}", *_facts(record), *_speed(record)]))
        self._show()

    def say(self, text: str) -> None:
        self.live.console.print(text, markup=False)  # a text may hold what came from a client

    def _show(self) -> None:
        table = Table.grid(padding=(0, 3))
        table.add_row(self.doing, *_facts(self.last))
        self.live.update(Group(self.bar, table))


def make_view() -> View:
    return LiveView() if sys.stdout.isatty() else PlainView()


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
