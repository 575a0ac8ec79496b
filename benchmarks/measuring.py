"""What the benchmarks share: rows of the table, taking turns, and the slope of a cost curve."""

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch


@dataclass(frozen=True)
class Row:
    """One target: two numbers taken side by side, what came of them, and what was asked for."""

    target: str
    against: str  # what the baseline is
    unit: str
    baseline: float | None
    ours: float | None
    ratio: float | None
    needed: str
    margin: float | None  # how many times better than needed; from 1 on the target is met
    passed: bool | None  # None: not measured, and `against` says why


def faster(target: str, against: str, unit: str, baseline: float, ours: float, at_least: float) -> Row:
    """A speed-up: baseline / ours."""
    ratio = baseline / ours
    return Row(target, against, unit, baseline, ours, ratio, f"≥ {at_least:.3g}", ratio / at_least, ratio >= at_least)


def within(target: str, against: str, unit: str, baseline: float, ours: float, at_most: float) -> Row:
    """A cost: ours / baseline."""
    ratio = ours / baseline
    return Row(target, against, unit, baseline, ours, ratio, f"≤ {at_most:.3g}", at_most / ratio, ratio <= at_most)


def grows(target: str, against: str, slope: float, low: float, high: float) -> Row:
    """The exponent of a cost curve: 1 is linear, 0 is flat."""
    needed = f"{low:g} … {high:g}" if math.isfinite(low) else f"≤ {high:g}"
    return Row(target, against, "exponent", None, slope, None, needed, None, low <= slope <= high)


def not_measured(target: str, why: str, needed: str) -> Row:
    return Row(target, why, "", None, None, None, needed, None, None)


def number(value: float | None) -> str:
    """Three digits are all that a busy machine gives."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def take_turns(makers: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """CPU seconds of each in its least disturbed repeat, and its last result.

    They run by turns, so that a noisy machine is noisy for all. What else runs can only add, so the least counts; it
    also leaves out the first repeat, which warms up. For one thread that does not wait, CPU time is the time it takes,
    without the time in which other programs had the core.
    """
    seconds, results = dict.fromkeys(makers, math.inf), {}
    for _ in range(repeats):
        for name, make in makers.items():
            start = time.process_time()
            results[name] = make()
            seconds[name] = min(seconds[name], time.process_time() - start)
    return seconds, results


Setup = Callable[..., Callable[[], object]]


class Contestant:
    """Work that is prepared and done in a process of its own: its memory and its allocator are nobody else's."""

    def __init__(self, setup: Setup, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, setup, arguments), daemon=True)
        self.process.start()
        self.connection.recv()  # it is prepared

    def seconds(self) -> float:
        """CPU seconds of one turn."""
        self.connection.send(True)
        return float(self.connection.recv())

    def close(self) -> None:
        self.connection.send(False)
        self.process.join()


def _serve(connection: Connection, setup: Setup, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    turn = setup(*arguments)
    connection.send(None)
    while connection.recv():
        start = time.process_time()
        turn()
        connection.send(time.process_time() - start)


def contest(setups: dict[str, tuple[Setup, Any]], repeats: int) -> dict[str, float]:
    """`take_turns` between processes; a setup is given its argument and returns what a turn does."""
    contestants = {name: Contestant(setup, argument) for name, (setup, argument) in setups.items()}
    seconds = dict.fromkeys(contestants, math.inf)
    for _ in range(repeats):
        for name, contestant in contestants.items():
            seconds[name] = min(seconds[name], contestant.seconds())
    for contestant in contestants.values():
        contestant.close()
    return seconds


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent p of cost ~ size^p: least squares through the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)
