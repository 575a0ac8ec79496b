"""Where the time of each round went: profile.jsonl, written during a run."""

import time
from pathlib import Path
from typing import Any

from fedssl.core.lines import read_lines
from fedssl.core.stopwatch import PARTS, UNKNOWN, Stopwatch
from fedssl.experiment.observers import Observer, Start
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.federation.rounds import Round


class ProfileBook(Observer):
    """One line per round. Every part is in seconds of wall time: what N workers did side by side counts 1/N.

    All parts are measured, none is what is left over; what no part has claimed is `other`.
    """

    def __init__(self, clock: Stopwatch, folder: RunFolder) -> None:
        self.clock, self.folder = clock, folder
        self._started = time.perf_counter()

    def start(self, run: Start) -> None:  # noqa: ARG002
        self._started = time.perf_counter()

    def round_finished(self, record: dict[str, Any], outcome: Round | None) -> None:
        """After all that belongs to the round, the checkpoint too."""
        if not self.clock.on:
            return
        parts: dict[str, float] = dict.fromkeys(PARTS, 0.0) | self.clock.taken()
        workers = outcome.workers if outcome else 1
        if outcome:
            for result in outcome.results:
                for name, seconds in result.profile.items():
                    parts[name] += seconds / workers
            parts["aggregation"] += outcome.aggregation_seconds
            parts["idle"] += outcome.idle_seconds
        now = time.perf_counter()
        wall = now - self._started
        parts[UNKNOWN] = wall - sum(parts.values())
        self.folder.append_profile({"round": record["round"], "wall": wall, "workers": workers, "parts": parts})
        self._started = now


def totals_of(run: Path) -> dict[str, float]:
    """Seconds of each part over all rounds, and of the wall clock."""
    path = run / "profile.jsonl"
    lines = read_lines(path) if path.exists() else []
    totals = {"wall": sum(line["wall"] for line in lines)}
    return totals | {name: sum(line["parts"][name] for line in lines) for name in (*PARTS, UNKNOWN)}
