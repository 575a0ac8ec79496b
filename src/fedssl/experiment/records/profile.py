"""Where the time of each round went: profile.jsonl, written during a run."""

import time
from pathlib import Path

from fedssl.core.stopwatch import PARTS, UNKNOWN, Stopwatch
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import read_lines
from fedssl.federation.rounds import Engine, Round


class ProfileBook:
    """One line per round. Every part is in seconds of wall time: what N workers did side by side counts 1/N.

    All parts are measured, none is what is left over; what no part has claimed is `other`.
    """

    def __init__(self, on: bool, folder: RunFolder) -> None:
        self.clock, self.folder = Stopwatch(on), folder
        self._started, self._idle = time.perf_counter(), 0.0

    def start_round(self) -> None:
        self._started = time.perf_counter()

    def end_round(self, outcome: Round | None = None, engine: Engine | None = None) -> None:
        """After all that belongs to the round, the checkpoint too; without an outcome it was round 0."""
        if not self.clock.on:
            return
        parts: dict[str, float] = dict.fromkeys(PARTS, 0.0) | self.clock.taken()
        workers = 1
        if outcome and engine:
            workers = min(engine.workers, len(outcome.bytes_down))
            for result in outcome.results:
                for name, seconds in result.profile.items():
                    parts[name] += seconds / workers
            parts["aggregation"] += outcome.aggregation_seconds
            parts["idle"] += engine.idle_seconds - self._idle
            self._idle = engine.idle_seconds
        now = time.perf_counter()
        wall = now - self._started
        parts[UNKNOWN] = wall - sum(parts.values())
        number = outcome.state.round_number if outcome else 0
        self.folder.append_profile({"round": number, "wall": wall, "workers": workers, "parts": parts})
        self._started = now


def totals_of(run: Path) -> dict[str, float]:
    """Seconds of each part over all rounds, and of the wall clock."""
    path = run / "profile.jsonl"
    lines = read_lines(path) if path.exists() else []
    totals = {"wall": sum(line["wall"] for line in lines)}
    return totals | {name: sum(line["parts"][name] for line in lines) for name in (*PARTS, UNKNOWN)}
