"""Runs of `fedssl paper` that outlast the machine they were made on: of each finished one the small files are kept.

    python -m scripts.paper_records run [JOBS]   makes what results/paper/list.toml lists and has no record
    python -m scripts.paper_records tables       writes the tables of docs/reproducing.md from the records

A record is a run folder without weights and images' places: results/paper/SCALE/RUN. So `fedssl paper show EXPERIMENT
--scale SCALE --out results/paper` shows them, with curves.
"""

import shutil
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedssl.experiment.progress.views import QuietView
from fedssl.experiment.records.run_record import read_summary
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
    experiment: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    seeds: int

    def plan(self, scale: str, out: Path) -> Plan:
        return make_plan(find_studies([self.experiment]), find_scale(scale), out, self.seeds, self.rows, self.columns)

    def table(self, scale: str) -> str:
        """The paper's numbers beside ours, as far as there are records; what is missing is said."""
        (study,) = find_studies([self.experiment])
        comparison = Comparison.of(study, find_scale(scale), RECORDS, self.seeds, self.rows, self.columns)
        if not any(one.measured.values for one in comparison.results):
            return "Not run yet.\n"
        blocks = ["\n".join(markdown_table(table)) for table in comparison.tables()]
        blocks.append(_wrapped(f"Order: {comparison.agreement.sentence()}"))
        if comparison.missing:
            blocks.append(_wrapped(f"Missing: {'; '.join(comparison.missing)}."))
        return "\n\n".join(blocks) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def read_list() -> tuple[str, list[Part]]:
    content = tomllib.loads(LIST.read_text())
    parts = [
        Part(name, given["experiment"], tuple(given["columns"]), tuple(given.get("rows", ())), given["seeds"])
        for name, given in content["parts"].items()
    ]
    return content["scale"], parts


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
            yield run.name


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
    scale, parts = read_list()
    bring_back(scale)
    for part in parts:
        for seeds in range(1, part.seeds + 1):
            plan = replace(part, seeds=seeds).plan(scale, RUNS)
            outcome = run_plan(plan, jobs, KeepingView(plan), lambda run: float(run.config.run.rounds))
            if outcome.stopped or outcome.failed:
                return 1
    return 0


def page_with_tables(text: str) -> str:
    """The page with a table of today's records for every part between its marks."""
    scale, parts = read_list()
    for part in parts:
        before, rest = text.split(BEGIN.format(part.name))
        text = before + BEGIN.format(part.name) + part.table(scale) + END + rest.split(END, 1)[1]
    return text


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and len(sys.argv) <= 3:
        sys.exit(run_all(int(sys.argv[2]) if sys.argv[2:] else 1))
    elif sys.argv[1:] == ["tables"]:
        PAGE.write_text(page_with_tables(PAGE.read_text()))
    else:
        sys.exit(__doc__)
