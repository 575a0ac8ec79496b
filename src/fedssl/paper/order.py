"""Does the order of the methods agree with the paper's? Pairs are counted, those closer than the noise apart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot

from fedssl.paper.catalogue import Direction
from fedssl.paper.measured import Result

SURE = 2.0  # standard errors by which two means must differ to be called different


@dataclass(frozen=True)
class Agreement:
    """Pairs with a number on both sides."""

    same: int = 0
    opposite: int = 0
    too_close: int = 0  # ours or the paper's differ by less than the noise
    disagreements: tuple[str, ...] = ()

    @property
    def comparable(self) -> int:
        return self.same + self.opposite + self.too_close

    def sentence(self) -> str:
        if not self.comparable:
            return "so far no two cells have a number here and in the paper."
        decided = self.same + self.opposite
        text = f"{self.same} of {decided} decided pairs are in the paper's order"
        close = f"{self.too_close} of {self.comparable} comparable pairs are closer than the noise and not counted"
        return f"{text}; {close}." if self.too_close else f"{text}."


def agreement(results: Sequence[Result], directions: Sequence[Direction]) -> Agreement:
    """All pairs of rows inside a column, and of columns inside a row where that order means something too."""
    same = opposite = too_close = 0
    disagreements = []
    for first, second in _pairs(results, directions):
        assert first.both is not None  # _pairs gives no others
        assert second.both is not None
        paper, ours = first.both[0] - second.both[0], first.both[1] - second.both[1]
        if _within_noise(first, second, paper, ours):
            too_close += 1
        elif (paper > 0) == (ours > 0):
            same += 1
        else:
            opposite += 1
            disagreements.append(f"{_name(first, second)} (paper {paper:+.2f}, here {ours:+.2f})")
    return Agreement(same, opposite, too_close, tuple(disagreements))


def _pairs(results: Sequence[Result], directions: Sequence[Direction]) -> Iterable[tuple[Result, Result]]:
    known = [result for result in results if result.both is not None]
    for first, second in combinations(known, 2):
        a, b = first.cell, second.cell
        if a.metric != b.metric or a.row.group != b.row.group:
            continue
        if (a.column is b.column and "rows" in directions) or (a.row is b.row and "columns" in directions):
            yield first, second


def _within_noise(first: Result, second: Result, paper: float, ours: float) -> bool:
    """Ours: two standard errors of the difference. The paper's: its printed spreads, where it prints them."""
    spread = hypot(first.paper_sd, second.paper_sd)
    error = hypot(first.measured.standard_error, second.measured.standard_error)
    return abs(paper) <= spread or abs(ours) <= SURE * error


def _name(first: Result, second: Result) -> str:
    a, b = first.cell, second.cell
    if a.column is b.column:
        return f"{a.column.label}: {a.row.title} against {b.row.title}"
    return f"{a.row.title}: {a.column.label} against {b.column.label}"
