"""The paper's figures drawn from our runs: curves over rounds, accuracy over a setting, a heat map."""

import statistics
from collections.abc import Sequence

import numpy as np

from fedssl.evaluation.protocols import PROTOCOLS
from fedssl.experiment.records.metrics import best_metric, metrics_of
from fedssl.experiment.records.run_record import read_rounds
from fedssl.paper.catalogue import Row
from fedssl.paper.comparison import METRICS, Comparison
from fedssl.paper.measured import Result
from fedssl.paper.plan import PlannedRun
from fedssl.reports.page import Figure, Panel
from fedssl.reports.plots import Key, Series, Swept, curves, heat_map, swept

MEASURES = {
    "knn": ("kNN accuracy over rounds", "kNN accuracy in %", 100.0),
    "divergence": ("Divergence over rounds", "divergence, mean over clients", 1.0),
    "mu": ("μ over rounds", "mu, mean over clients", 1.0),
}


def figures_of(comparison: Comparison) -> list[Figure]:
    """What can be drawn of the runs that are there."""
    kind = comparison.study.figure
    if kind == "curves":
        return [figure for measure in comparison.study.measures for figure in _curves(comparison, measure)]
    if kind == "sweep":
        return _sweep(comparison)
    return _heat_maps(comparison) if kind == "heat-map" else []


def _curves(comparison: Comparison, measure: str) -> list[Figure]:
    title, y_label, factor = MEASURES[measure]
    several = len(comparison.study.columns) > 1
    series: dict[tuple[str, ...], Series] = {}
    for result in comparison.results:
        keys = tuple(run.key for run in _trained(comparison, result))
        curve = _mean_curve(comparison, result, measure, factor)
        if curve and keys not in series:  # cells that read different numbers off the same runs have one curve
            cell = result.cell
            label = cell.column.label.split(", ")[-1] if cell.row.target else cell.row.title
            label = f"{label}, {cell.column.label}" if several and not cell.row.target else label
            series[keys] = Series(label, list(curve), list(curve.values()))
    if not series:
        return []
    name = f"{comparison.study.name}-{measure}"
    alt = f"{title} for {', '.join(one.label for one in series.values())}"
    accuracy = measure in PROTOCOLS
    drawing = curves(f"{name}-plot", alt, list(series.values()), y_label, zero=not accuracy)
    random = "; round 0 is the random encoder in the BatchNorm mode that suits it better" if accuracy else ""
    of = f"Mean over {comparison.seeds} seeds, as far as they are there" if comparison.seeds > 1 else "One seed"
    caption = f"{of}{random}."
    return [Figure.of(name, title, caption, drawing)]


def _trained(comparison: Comparison, result: Result) -> list[PlannedRun]:
    runs = (comparison.plan.run_of(result.cell, seed) for seed in range(comparison.seeds))
    return [run for run in runs if run and run.trained()]


def _mean_curve(comparison: Comparison, result: Result, measure: str, factor: float) -> dict[int, float]:
    """The mean over seeds of every round in which all of them have the measure."""
    runs = _trained(comparison, result)
    at: dict[int, list[float]] = {}
    for run in runs:
        for record in read_rounds(run.folder):
            # The last round stays in the mode of the tables; the first one has no table, and is shown at its best.
            value = metrics_of(record).get(measure) if record["round"] else best_metric(record, measure)
            if value is not None:
                at.setdefault(record["round"], []).append(factor * value)
    return {number: statistics.fmean(values) for number, values in sorted(at.items()) if len(values) == len(runs)}


def _sweep(comparison: Comparison) -> list[Figure]:
    """Ours and, where it prints numbers, the paper's in a panel beside it: the scales of the two may differ."""
    study = comparison.study
    panels: list[Panel] = []
    legend: tuple[Key, ...] = ()
    assert study.sweep
    y_label = METRICS[study.metric]
    for heading, point in (("Here", _point), ("In the paper", _printed_point)):
        lines = [Swept(row.title, *_columns([point(one) for one in _row(comparison, row)])) for row in study.rows]
        if any(y is not None for line in lines for y in line.y):
            alt = f"{heading.lower()}: {y_label} over {study.sweep.name} for {', '.join(line.label for line in lines)}"
            drawing = swept(f"{study.name}-{len(panels)}-plot", alt, lines, study.sweep.name, y_label)
            panels.append(Panel(heading, drawing.svg))
            legend = drawing.legend
    if not any(panel.heading == "Here" for panel in panels):
        return []
    scale = (
        "" if comparison.scale.name == "paper" else " The axis has the paper's values; below is what stands for them."
    )
    caption = f"Mean and sd over seeds.{scale}"
    return [
        Figure(study.name, f"Accuracy over {study.sweep.name}", caption, panels=tuple(panels), legend=legend, wide=True)
    ]


def _row(comparison: Comparison, row: Row) -> list[Result]:
    return [result for result in comparison.results if result.cell.row is row]


Point = tuple[float, float | None, float]


def _point(result: Result) -> Point:
    return result.cell.column.x or 0.0, result.measured.mean, result.measured.sd or 0.0


def _printed_point(result: Result) -> Point:
    printed = result.printed
    return result.cell.column.x or 0.0, printed.mean if printed else None, (printed and printed.sd) or 0.0


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float | None], list[float]]:
    return [x for x, _, _ in points], [y for _, y, _ in points], [sd for _, _, sd in points]


def _heat_maps(comparison: Comparison) -> list[Figure]:
    study = comparison.study
    by_place = {(one.cell.row.title, one.cell.column.label): one.measured.mean for one in comparison.results}
    rows = [row.title for row in study.rows if any((row.title, c.label) in by_place for c in study.columns)]
    labels = [column.label for column in study.columns if any((row, column.label) in by_place for row in rows)]
    values = np.array([[by_place.get((row, label)) or 0.0 for label in labels] for row in rows])
    if not values.any():
        return []
    alt = f"{METRICS[study.metric]} for {len(rows)} x {len(labels)} combinations, at most {values.max():.1f}"
    left, below = ([label.split(" = ")[-1] for label in side] for side in (rows, labels))
    axes = (rows[0].split(" = ")[0], labels[0].split(" = ")[0])
    floor = 0.98 * float(values[values > 0].min())
    drawing = heat_map(f"{study.name}-plot", alt, values, left, below, axes, floor=floor, digits=1)
    caption = "Mean over seeds; an empty cell is not measured yet."
    return [Figure.of(study.name, METRICS[study.metric], caption, drawing, wide=True)]
