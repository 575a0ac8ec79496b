"""Runs of `fedssl paper` that outlast the machine they were made on: of each finished one the small files are kept.

    python -m scripts.paper_records run [JOBS]   makes what results/paper/list.toml lists and has no record
    python -m scripts.paper_records tables       writes the tables of docs/reproducing.md from the records

A record is a run folder without weights and images' places: results/paper/SCALE/RUN. So `fedssl paper show EXPERIMENT
--scale SCALE --out results/paper` shows them, with curves.
"""

import json
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedssl.core.checksums import signed_json
from fedssl.experiment.progress.views import QuietView
from fedssl.experiment.records.run_record import read_json, read_summary
from fedssl.paper.catalogue import find_studies
from fedssl.paper.comparison import Comparison, markdown_table
from fedssl.paper.plan import Plan, make_plan
from fedssl.paper.runner import run_plan
from fedssl.paper.scales import find_scale

ROOT = Path(__file__).resolve().parents[1]
LIST, RECORDS, RUNS = ROOT / "results/paper/list.toml", ROOT / "results/paper", ROOT / "runs/paper"
PAGE = ROOT / "docs/reproducing.md"
KEPT = ("config.toml", "environment.json", "summary.json", "rounds.jsonl")
BEGIN, END = "<!-- paper: {} -->\n", "<!-- end of paper -->"


@dataclass(frozen=True)
class Part:
    """Some cells of one experiment: what is run next, and a table of the page."""

    name: str
    scale: str
    experiment: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    seeds: int
    beside: tuple[str, ...] = ()  # row and column of a cell that stands under the others, run by another part

    def plan(self, out: Path) -> Plan:
        studies, scale = find_studies([self.experiment]), find_scale(self.scale)
        return make_plan(studies, scale, out, self.seeds, self.rows, self.columns)

    def table(self) -> str:
        """The paper's numbers beside ours, as far as there are records; what is missing is said."""
        compared = self._compared(self.rows, self.columns)
        first, *others = compared.tables()
        if self.beside:
            row, column = self.beside
            first = replace(first, rows=[*first.rows, *self._compared((row,), (column,)).tables()[0].rows])
        blocks = ["\n".join(markdown_table(table)) for table in (first, *others)]
        blocks.append(_wrapped(f"Order: {compared.agreement.sentence()}"))
        if compared.missing:
            blocks.append(_wrapped(f"Missing: {'; '.join(compared.missing)}."))
        return "\n\n".join(blocks) + "\n"

    def _compared(self, rows: tuple[str, ...], columns: tuple[str, ...]) -> Comparison:
        (study,) = find_studies([self.experiment])
        return Comparison.of(study, find_scale(self.scale), RECORDS, self.seeds, rows, columns)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def read_list() -> list[Part]:
    content = tomllib.loads(LIST.read_text())
    return [
        Part(
            name=name,
            scale=given.get("scale", content["scale"]),
            experiment=given["experiment"],
            columns=tuple(given["columns"]),
            rows=tuple(given.get("rows", ())),
            seeds=given["seeds"],
            beside=tuple(given.get("beside", ())),
        )
        for name, given in content["parts"].items()
    ]


def bring_back(scale: str) -> None:
    """Records become run folders that look finished, so that nothing is run twice."""
    for record in (RECORDS / scale).glob("*/summary.json"):
        if not (folder := RUNS / scale / record.parent.name).exists():
            shutil.copytree(record.parent, folder)


def keep(plan: Plan, records: Path = RECORDS) -> Iterator[str]:
    """Copies what is finished and has no record yet, or an older one; says which."""
    for run in plan.runs.values():
        record = records / plan.scale.name / run.name
        if run.finished(plan.scale.evaluation_epochs) and _differs(run.folder, record):
            record.mkdir(parents=True, exist_ok=True)
            for name in (name for name in KEPT if (run.folder / name).exists()):
                shutil.copyfile(run.folder / name, record / name)
            if (environment := record / "environment.json").exists():
                environment.write_text(without_places(environment), encoding="utf-8")
            yield run.name


def without_places(environment: Path) -> str:
    """The file with its command as typed in this checkout, wherever that stood; signed anew."""
    content = read_json(environment, must=True)
    content["command"] = [word.replace(f"{ROOT}/", "") for word in content["command"]]
    return signed_json(json.dumps(content, indent=2))


def _differs(folder: Path, record: Path) -> bool:
    return not (record / "summary.json").exists() or read_summary(folder) != read_summary(record)


class KeepingView(QuietView):
    """Prints what is said, and keeps the records of what is finished by then."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def say(self, text: str) -> None:
        print(text, flush=True)
        for name in keep(self.plan):
            print(f"kept: {name}", flush=True)


def run_all(jobs: int) -> int:
    """Part by part, in each the first seed of all cells before the second; 1 if some run failed."""
    for part in read_list():
        bring_back(part.scale)
        for seeds in range(1, part.seeds + 1):
            plan = replace(part, seeds=seeds).plan(RUNS)
            outcome = run_plan(plan, jobs, KeepingView(plan), lambda run: float(run.config.run.rounds))
            if outcome.stopped or outcome.failed:
                return 1
    return 0


def page_with_tables(text: str) -> str:
    """The page with a table of today's records for every part between its marks."""
    for part in read_list():
        before, rest = text.split(BEGIN.format(part.name))
        text = before + BEGIN.format(part.name) + part.table() + END + rest.split(END, 1)[1]
    return text


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and len(sys.argv) <= 3:
        sys.exit(run_all(int(sys.argv[2]) if sys.argv[2:] else 1))
    elif sys.argv[1:] == ["tables"]:
        PAGE.write_text(page_with_tables(PAGE.read_text()))
    else:
        sys.exit(__doc__)
