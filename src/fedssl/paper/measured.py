"""What the runs of a cell came to: one number per seed, their mean and spread, beside what the paper prints."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from fedssl.evaluation.protocols import in_run
from fedssl.experiment.records.metrics import metrics_of
from fedssl.experiment.records.run_record import read_rounds, read_summary
from fedssl.paper.catalogue import Cell, Printed
from fedssl.paper.plan import Plan, PlannedRun, evaluation_of


@dataclass(frozen=True)
class Measured:
    """The results of a cell's runs; None: the target was not reached."""

    values: tuple[float | None, ...]
    seeds: int
    over_clients: float | None = None  # mean of the spreads over clients, where every client goes its own way
    images: int = 0  # test images that an accuracy was counted over

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """None also when some runs did not reach the target: a mean over the others would flatter."""
        return statistics.fmean(self.known) if self.values and len(self.known) == len(self.values) else None

    @property
    def sd(self) -> float | None:
        return statistics.stdev(self.known) if self.mean is not None and len(self.known) > 1 else None

    @property
    def standard_error(self) -> float:
        """Of the mean, in points: from the spread over seeds; for a single run from the number of test images."""
        if self.sd is not None:
            return self.sd / sqrt(len(self.known))
        if self.mean is None or not self.images:
            return 0.0
        share = min(max(self.mean / 100, 0.0), 1.0)
        return 100 * sqrt(share * (1 - share) / self.images)


@dataclass(frozen=True)
class Result:
    """A cell with the paper's number and ours."""

    cell: Cell
    printed: Printed | None
    measured: Measured
    left_out: str = ""  # why it is not run at this scale

    @property
    def both(self) -> tuple[float, float] | None:
        """(paper's, ours) where there are two numbers to compare."""
        if self.printed is None or self.printed.mean is None or self.measured.mean is None:
            return None
        return self.printed.mean, self.measured.mean

    @property
    def difference(self) -> float | None:
        return None if self.both is None else self.both[1] - self.both[0]

    @property
    def paper_sd(self) -> float:
        """The paper's printed spread; 0 where it prints none."""
        return (self.printed.sd if self.printed else None) or 0.0


def results_of(plan: Plan, cells: Sequence[Cell], seeds: int) -> list[Result]:
    """What is known of these cells; runs that are not there or not finished are missing, never guessed."""
    reasons = {cell.title: reason for cell, reason in plan.left_out}
    return [Result(cell, cell.printed, _measured(plan, cell, seeds), reasons.get(cell.title, "")) for cell in cells]


def _measured(plan: Plan, cell: Cell, seeds: int) -> Measured:
    values, spreads, images = [], [], 0
    for seed in range(seeds):
        run = plan.run_of(cell, seed)
        if run and run.trained():
            result = _value(run, cell, plan)
            if result is not None:
                value, spread, images = result
                values.append(value)
                spreads += [spread] if spread is not None else []
    return Measured(tuple(values), seeds, statistics.fmean(spreads) if spreads else None, images)


def _value(run: PlannedRun, cell: Cell, plan: Plan) -> tuple[float | None, float | None, int] | None:
    """(value, spread over clients, test images); None: not measured yet."""
    if cell.protocol:
        entry = evaluation_of(run.folder, cell.protocol, plan.scale.evaluation_epochs)
        if entry is None:
            return None
        over_clients = entry["sd"] if entry["encoder"] == "clients" else None
        return 100 * entry["accuracy"], None if over_clients is None else 100 * over_clients, entry["n"]
    if in_run(cell.metric):
        final = read_summary(run.folder)["final"]
        over_clients = final.get(f"{cell.metric}_sd")
        return 100 * final[cell.metric], None if over_clients is None else 100 * over_clients, 0
    rounds = read_rounds(run.folder)
    if cell.metric == "divergence":
        return metrics_of(rounds[-1]).get("divergence"), None, 0
    reached = rounds_to(rounds, plan.scale.target(cell) or 0.0)
    epochs = run.config.local_training.epochs if cell.metric == "epochs-to" else 1
    return None if reached is None else float(reached * epochs), None, 0


def rounds_to(rounds: Sequence[dict[str, Any]], target: float) -> int | None:
    """The first evaluated round whose kNN accuracy is at least the target (in %)."""
    for record in rounds:
        if record["round"] and record.get("knn") is not None and 100 * record["knn"] >= target:
            return int(record["round"])
    return None
