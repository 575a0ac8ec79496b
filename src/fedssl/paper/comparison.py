"""An experiment with its results as tables, sentences and figures; from here it becomes text, Markdown or HTML."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedssl.paper.catalogue import NOT_REACHED, Cell, Study
from fedssl.paper.measured import Measured, Result, results_of
from fedssl.paper.order import Agreement, agreement
from fedssl.paper.plan import Plan, choose_cells, make_plan
from fedssl.paper.scales import Scale
from fedssl.reports.page import TablePart

WIDE = 2  # rows or columns of the paper beside each other in one table: each becomes three
ABSENT = "–"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One experiment at one scale: what the paper has, what came out, what is missing."""

    study: Study
    scale: Scale
    plan: Plan
    seeds: int
    results: list[Result]
    rows: Sequence[str] = ()  # as they were asked for; none: all
    columns: Sequence[str] = ()

    @classmethod
    def of(
        cls, study: Study, scale: Scale, out: Path, seeds: int, rows: Sequence[str] = (), columns: Sequence[str] = ()
    ) -> "Comparison":
        plan = make_plan([study], scale, out, seeds, rows, columns)
        results = results_of(plan, choose_cells(study, rows, columns), seeds)
        return cls(study=study, scale=scale, plan=plan, seeds=seeds, results=results, rows=rows, columns=columns)

    @property
    def agreement(self) -> Agreement:
        return agreement(self.results, self.study.order)

    @property
    def missing(self) -> list[str]:
        """Cells whose runs are not all there."""
        lines = []
        for result in self.results:
            count = len(result.measured.values)
            if not result.left_out and count < self.seeds:
                have = f"{count} of {self.seeds} seeds" if count else "no run"
                lines.append(f"{result.cell.row.title}, {result.cell.column.label}: {have}")
        return lines

    @property
    def command(self) -> str:
        """Makes the missing runs; what is finished is skipped."""
        chosen = [text for row in self.rows for text in ("--rows", row)]
        chosen += [text for column in self.columns for text in ("--columns", column)]
        scale = ["--scale", self.scale.name, "--seeds", str(self.seeds), "--out", str(self.plan.folder.parent)]
        return shlex.join(["fedssl", "paper", "run", self.study.name, *scale, *chosen])

    @property
    def left_out(self) -> list[str]:
        """What is not run at this scale, with the reason; one line a reason."""
        by_reason: dict[str, list[str]] = {}
        for result in self.results:
            if result.left_out:
                by_reason.setdefault(result.left_out, []).append(
                    f"{result.cell.row.title} ({result.cell.column.label})"
                )
        return [f"{reason}: {_some(cells)}" for reason, cells in by_reason.items()]

    @property
    def carried_over(self) -> list[str]:
        lines = [
            line for result in self.results if not result.left_out for line in self.scale.carried_over(result.cell)
        ]
        return list(dict.fromkeys(lines))

    def sentences(self) -> list[str]:
        """What to know before reading the tables."""
        study, counted = self.study, len(self.results)
        complete = counted - len(self.missing) - sum(bool(result.left_out) for result in self.results)
        lines = [f"{study.number} of the paper ({', '.join(study.labels)}). {study.shows}."]
        seeds = f"{self.seeds} seeds; ± is the sd over seeds" if self.seeds > 1 else "one seed; there is no spread"
        lines.append(f"{complete} of {counted} cells are complete with {seeds}.")
        if self.missing:
            lines.append(f"What is missing is made with: {self.command}")
        if self.scale.name != "paper":
            lines.append(
                f"Scale {self.scale.name} is not the paper's ({self.scale.title}): compare the order of the "
                "methods, not the numbers."
            )
        if study.read_as:
            lines.append(f"Read as: {study.read_as}.")
        if study.not_printed:
            lines.append(f"Not printed: {study.not_printed}.")
        if any(result.printed for result in self.results):
            lines.append(f"Order: {self.agreement.sentence()}")
        return lines

    def notes(self) -> dict[str, list[str]]:
        """Lists that belong under the tables; empty ones are left out."""
        lists = {
            "Pairs in another order than the paper's": list(self.agreement.disagreements),
            "Values that the scale carries over": self.carried_over,
            "Left out at this scale": self.left_out,
            "Missing": self.missing,
        }
        return {title: lines for title, lines in lists.items() if lines}

    def tables(self) -> list[TablePart]:
        """One line per row, with paper, ours and difference of each column; lying down where there are more columns."""
        by_place = {(result.cell.row.title, result.cell.column.label): result for result in self.results}
        rows = [row.title for row in self.study.rows if any(r == row.title for r, _ in by_place)]
        columns = [column.label for column in self.study.columns if any(c == column.label for _, c in by_place)]
        if len(columns) > len(rows):
            by_place = {(column, row): result for (row, column), result in by_place.items()}
            rows, columns = columns, rows
        tables = []
        for start in range(0, len(columns), WIDE):
            part = columns[start : start + WIDE]
            head = ["", *(text for label in part for text in (f"{label}: paper", "here", "difference"))]
            lines = [[row, *(text for label in part for text in _texts(by_place.get((row, label))))] for row in rows]
            shown = [result for (_, label), result in by_place.items() if label in part]
            tables.append(TablePart(self._caption(shown), head, lines))
        return tables

    def _caption(self, shown: Sequence[Result]) -> str:
        metrics = dict.fromkeys(result.cell.metric for result in shown)
        return f"{self.study.number}: {', '.join(METRICS[metric] for metric in metrics)}"


METRICS = {
    "knn": "kNN accuracy in %",
    "linear": "linear evaluation, accuracy in %",
    "semi-1": "fine-tuned with 1 % of the labels, accuracy in %",
    "semi-10": "fine-tuned with 10 % of the labels, accuracy in %",
    "divergence": "divergence in the last round, mean over clients",
    "rounds-to": "rounds to the target accuracy",
    "epochs-to": "epochs to the target accuracy",
}


def _texts(result: Result | None) -> tuple[str, str, str]:
    if result is None:
        return ABSENT, ABSENT, ABSENT
    printed = result.printed.text if result.printed else ABSENT
    difference = ABSENT if result.difference is None else f"{result.difference:+.{_digits(result.cell)}f}"
    return printed, ABSENT if result.left_out else measured_text(result.measured, result.cell), difference


def measured_text(measured: Measured, cell: Cell) -> str:
    """`44.10 ± 0.40 (n = 3)`, with the spread over clients where each has its own encoder."""
    if not measured.values:
        return "missing"
    count = f"(n = {len(measured.values)})"
    if measured.mean is None:
        return f"{NOT_REACHED} by {len(measured.values) - len(measured.known)} {count}"
    digits = _digits(cell)
    spread = "" if measured.sd is None else f" ± {measured.sd:.{max(digits, 1)}f}"
    clients = "" if measured.over_clients is None else f", clients ± {measured.over_clients:.2f}"
    return f"{measured.mean:.{digits}f}{spread} {count}{clients}"


def _digits(cell: Cell) -> int:
    return 0 if cell.metric in ("rounds-to", "epochs-to") else 2


def _some(texts: Sequence[str], most: int = 6) -> str:
    return ", ".join(texts) if len(texts) <= most else f"{', '.join(texts[:most])} and {len(texts) - most} more"


def markdown(comparison: Comparison) -> str:
    """The whole comparison as GitHub Markdown."""
    lines = [f"## {comparison.study.title}", "", *(f"{text}  " for text in comparison.sentences()), ""]
    for table in comparison.tables():
        lines += [f"**{table.caption}**", "", *markdown_table(table), ""]
    for title, notes in comparison.notes().items():
        lines += [f"**{title}**", "", *(f"- {note}" for note in notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def markdown_table(table: TablePart) -> list[str]:
    rule = ["---"] + ["---:"] * (len(table.head) - 1)
    return [_line(cells) for cells in (table.head, rule, *table.rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
