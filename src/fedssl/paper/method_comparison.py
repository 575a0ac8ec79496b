"""Methods beside each other on one partition, network and protocol: runs, who is better, what is noise, one page."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import hypot, sqrt
from pathlib import Path
from typing import Any, get_args

from fedssl.core.errors import FedsslError
from fedssl.core.files import size_text
from fedssl.core.progress import Progress, silent
from fedssl.data.dataset import where
from fedssl.evaluation.protocols import in_run
from fedssl.experiment.build.automatic import fitted
from fedssl.experiment.build.data import build_dataset
from fedssl.experiment.config.preset_files import preset_names
from fedssl.experiment.config.schema import Config
from fedssl.experiment.config.texts import NOT_SET
from fedssl.experiment.records.run_record import read_summary
from fedssl.experiment.records.totals import mean
from fedssl.paper.catalogue import Cell, Column, Metric, Row, Study
from fedssl.paper.comparison import ABSENT, METRICS, Comparison, measured_text
from fedssl.paper.figures import figures_of
from fedssl.paper.measured import Measured, Result, results_of
from fedssl.paper.page import chapter, write_chapters
from fedssl.paper.plan import make_plan
from fedssl.paper.scales import LeftOut, Scale
from fedssl.reports.compare import Row as Setting
from fedssl.reports.compare import duration, parted, settings
from fedssl.reports.page import Chapters, Figure, TablePart
from fedssl.reports.plots import MAX_LINES

# Taken when none is named: those that need no network of their own, and of which weights alone leave the clients.
ALGORITHMS = (
    *("fedsimclr", "fedmocov2", "fedsimsiam", "fedbyol", "fedema", "fedvicreg", "fedbarlow", "feddino"),
    *("fedalign-uniform", "fedx", "fedssd", "fedbyol+feddecorr", "fedbyol+fedu2", "fedbyol+l-dawa"),
)
# Student's t of a 95 % interval, by degrees of freedom from 1; beyond them as for the last.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18)


class OnePreset(Scale):
    """A preset as it is, with numbers for what it leaves to the images."""

    def configure(self, cell: Cell) -> Config | LeftOut:
        config = super().configure(cell)
        return config if isinstance(config, LeftOut) else fitted(config, silent)[0]


@dataclass(frozen=True)
class MethodComparison(Comparison):
    """A list of algorithms with the same preset, settings and seeds; a `Comparison` in which nothing is printed."""

    overrides: tuple[str, ...] = ()  # as they were typed

    @classmethod
    def of_algorithms(
        cls,
        preset: str,
        algorithms: Sequence[str],
        out: Path,
        seeds: int,
        *,
        overrides: Mapping[str, Any] | None = None,
        typed: Sequence[str] = (),
        metric: Metric = "linear",
        epochs: int = 200,
    ) -> "MethodComparison":
        """Plans the runs; each algorithm is a preset of `fedssl presets`, or several joined by plus signs."""
        study = _study(preset, algorithms, seeds, {"evaluation.linear_probe": False, **(overrides or {})}, metric)
        about = {"name": preset, "title": f"the preset {preset}", "changes": []}
        scale = OnePreset.model_validate({**about, "evaluation_epochs": {"linear": epochs}})
        plan = make_plan([study], scale, out, seeds)
        results = results_of(plan, list(study.cells()), seeds)
        return cls(study=study, scale=scale, plan=plan, seeds=seeds, results=results, overrides=tuple(typed))

    @property
    def command(self) -> str:
        algorithms = [row.algorithm for row in self.study.rows]
        given = ["--seeds", str(self.seeds), "--protocol", self.study.metric, "--out", str(self.plan.folder.parent)]
        given += [text for one in self.overrides for text in ("--set", one)]
        return shlex.join(["fedssl", "bench", "methods", self.study.preset, *algorithms, *given])

    @property
    def ranked(self) -> list[Result]:
        """The best first; those without a number last."""
        return sorted(self.results, key=lambda one: -1.0 if one.measured.mean is None else -one.measured.mean)

    def sentences(self) -> list[str]:
        complete = len(self.results) - len(self.missing)
        spread = f"{self.seeds} seeds; ± is the sd over seeds" if self.seeds > 1 else "one seed; there is no spread"
        lines = [f"{complete} of {len(self.results)} methods are complete with {spread}."]
        lines += [f"What is missing is made with: {self.command}"] if self.missing else []
        return [*lines, _order(self.ranked)]

    def notes(self) -> dict[str, list[str]]:
        leaves = {one.cell.row.title: self._config(one).method.factory.leaves for one in self.results}
        lists = {
            "More than weights leaves the clients": [f"{name}: {text}" for name, text in leaves.items() if text],
            "Not the same data, partition or network": self._unlike(),
            "Missing": self.missing,
        }
        return {title: lines for title, lines in lists.items() if lines}

    def tables(self) -> list[TablePart]:
        head = ["", METRICS[self.study.metric], "not distinguishable from", "training, core time", "sent, up + down"]
        head += [METRICS[name] for name in self._beside]
        rows = [self._line(one) for one in self.ranked]
        return [TablePart(f"{self.study.title}: mean ± sd over seeds, the best first", head, rows)]

    @property
    def _beside(self) -> list[Metric]:
        """What the runs record by themselves, where it is not what methods are compared by."""
        return [name for name in get_args(Metric) if in_run(name) and name != self.study.metric]

    def _line(self, result: Result) -> list[str]:
        summaries = self._summaries(result)
        finals = [one.get("final", {}) for one in summaries]
        beside = [mean([100 * one[name] for one in finals if name in one]) for name in self._beside]
        seconds = mean([one["core_seconds"]["training"] for one in summaries if "core_seconds" in one])
        sent = mean([one["bytes_up"] + one["bytes_down"] for one in summaries])
        others = [one for one in self.ranked if one is not result and one.measured.mean is not None]
        alike = [one.cell.row.title for one in others if _unclear(result, one)]
        return [
            result.cell.row.title,
            measured_text(result.measured, result.cell),
            "every other" if len(alike) == len(others) > 1 else ", ".join(alike) or ABSENT,
            duration(seconds),
            ABSENT if sent is None else size_text(sent),
            *(ABSENT if mean is None else f"{mean:.2f}" for mean in beside),
        ]

    def figures(self) -> list[Figure]:
        """Curves of the best, then of the next: as many in one figure as there are colours."""
        figures, ranked = [], self.ranked
        for start in range(0, len(ranked), MAX_LINES):
            study, some = self.study.model_copy(update={"name": f"methods-{start}"}), ranked[start : start + MAX_LINES]
            places = f": places {start + 1} to {start + len(some)}" if len(some) < len(ranked) else ""
            drawn = figures_of(replace(self, study=study, results=some))
            figures += [replace(figure, title=figure.title + places) for figure in drawn]
        return figures

    def settings(self) -> list[TablePart]:
        configs = {one.cell.row.title: self._config(one).as_raw() for one in self.results}
        differ, equal = parted(settings(list(configs.values())))
        own = [[name, _own(differ, place)] for place, name in enumerate(configs)]
        tables = [TablePart("What differs between the methods", ["", "not as most of them"], own if differ else [])]
        tables += [TablePart("The same for all", ["setting", "value"], [[row.label, row.values[0]] for row in equal])]
        return [table for table in tables if table.rows]

    def _unlike(self) -> list[str]:
        """A method whose algorithm brings its own partition or network is no fair comparison; this says which."""
        first = self._config(self.results[0])
        lines = []
        for one in self.results:
            config = self._config(one)
            own = [part for part in ("data", "partition", "network") if getattr(config, part) != getattr(first, part)]
            lines += [f"{one.cell.row.title}: {', '.join(own)} not as {self.results[0].cell.row.title}"] if own else []
        return lines

    def _config(self, result: Result) -> Config:
        run = self.plan.run_of(result.cell, 0)
        assert run is not None  # nothing is left out of a comparison
        return run.config

    def _summaries(self, result: Result) -> list[dict[str, Any]]:
        runs = (self.plan.run_of(result.cell, seed) for seed in range(self.seeds))
        return [read_summary(run.folder) for run in runs if run and run.trained()]


def _study(preset: str, algorithms: Sequence[str], seeds: int, overrides: dict[str, Any], metric: Metric) -> Study:
    rows = [Row(label=name, algorithm=name) for name in dict.fromkeys(algorithms)]
    about = {"name": "methods", "position": 0, "number": "", "labels": [], "shows": ""}
    return Study(
        **about,
        title=f"Methods on {preset}",
        metric=metric,
        preset=preset,
        seeds=seeds,
        figure="curves",
        settings=overrides,
        columns=[Column(label=preset)],
        rows=rows,
    )


def check_methods(comparison: MethodComparison, progress: Progress = silent) -> None:
    """Refuses what cannot be compared: fewer than two methods, or images without labels to count an accuracy by."""
    if len(comparison.results) < 2:
        raise FedsslError(
            f"ALGORITHM…: one is no comparison: name two or more of {', '.join(preset_names('algorithms'))}"
        )
    config = comparison._config(comparison.results[0])
    if where(config.data.factory) == "here" and build_dataset(config.data, progress).labelled is None:
        raise FedsslError(
            "data.eval_test: methods are compared by their accuracy, which needs labelled test images: "
            "--set data.eval_test=PLACE"
        )


def margin(first: Measured, second: Measured) -> float | None:
    """Half the 95 % interval of the difference of two means over seeds; None: one of them has no spread."""
    if first.sd is None or second.sd is None:
        return None
    freedom = len(first.known) + len(second.known) - 2
    return T95[min(freedom, len(T95)) - 1] * hypot(_error(first), _error(second))


def _error(measured: Measured) -> float:
    """The standard error over seeds; not below what counting so many test images allows: a few seeds agree by luck."""
    one = Measured(values=(measured.mean,), seeds=1, images=measured.images).standard_error
    return max(measured.standard_error, one / sqrt(len(measured.known)))


def _unclear(first: Result, second: Result) -> bool:
    """Whether both are measured and the difference may be noise."""
    a, b = first.measured, second.measured
    if a.mean is None or b.mean is None:
        return False
    noise = margin(a, b)
    return noise is None or abs(a.mean - b.mean) <= noise


def _order(ranked: Sequence[Result]) -> str:
    known = [one for one in ranked if one.measured.mean is not None]
    if len(known) < 2:
        return "Order: so far fewer than two methods have a number."
    if all(one.measured.sd is None for one in known):
        return "Order: nothing is decided by one seed; take three or more (--seeds 3)."
    pairs = list(combinations(known, 2))
    decided = [pair for pair in pairs if not _unclear(*pair)]
    best, alike = known[0], [one.cell.row.title for one in known[1:] if _unclear(known[0], one)]
    first = f"{best.cell.row.title} has the highest mean"
    first += f", not distinguishable from {', '.join(alike)}" if alike else ", and is better than every other"
    return (
        f"Order: {first}. {len(decided)} of {len(pairs)} pairs are decided: their difference is larger than its 95 % "
        "interval over seeds (Student's t, each pair for itself: of many pairs, one in twenty may be chance)."
    )


def _own(differ: Sequence[Setting], place: int) -> str:
    """The settings that one method has and at most half of all have so."""
    rare = [row for row in differ if 2 * row.values.count(row.values[place]) <= len(row.values)]
    return ", ".join(f"{row.label} {row.values[place]}" for row in rare if row.values[place] != NOT_SET) or ABSENT


def write_method_page(comparison: MethodComparison, out: Path) -> None:
    """One HTML file: the order, the table, curves, and all settings."""
    page = Chapters(
        title=comparison.study.title,
        eyebrow=f"Federated self-supervised learning · {comparison.study.preset}",
        story=["The same images, partition, network, evaluation and seeds for every method."],
        chapters=[chapter(comparison, "methods", "Results", comparison.figures())],
        settings=comparison.settings(),
        settings_title="Settings",
    )
    write_chapters(page, out)
