"""Trials: short runs by which settings are chosen, each measured on validation images and kept as a small record.

    python -m scripts.trials run      runs what results/trials.toml lists and has no record yet, one after another
    python -m scripts.trials tables   writes the tables of docs/results.md from the records

Each trial runs in one process with one thread, so that its core-seconds are its own. A killed trial is resumed.
"""

import json
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedssl.experiment.experiment import load
from fedssl.experiment.records.run_record import read_json

ROOT = Path(__file__).resolve().parents[1]
LIST, RECORDS, DOCS = ROOT / "results" / "trials.toml", ROOT / "results" / "trials", ROOT / "docs" / "results.md"
RUNS = ROOT / "runs" / "trials"
BEGIN, END = "<!-- results: trials -->\n", "<!-- end of results -->"
Record = dict[str, Any]


def listed(path: Path = LIST) -> dict[str, Record]:
    """Every trial with all its settings: those of all trials, those of the one it is like, its own."""
    content = tomllib.loads(path.read_text())
    trials: dict[str, Record] = {}
    for name, trial in content["trials"].items():
        above = trials[trial["like"]]["settings"] if "like" in trial else content["common"]
        trials[name] = trial | {"preset": content["preset"], "settings": above | trial["set"]}
    return trials


def run_one(name: str, trial: Record, runs: Path = RUNS) -> Record:
    """Runs one trial, or what is left of it, and makes its record from the run folder."""
    folder = runs / name
    summary = load(trial["preset"], trial["settings"]).run(folder).summary
    environment = read_json(folder / "environment.json")
    return {
        "name": name,
        "like": trial.get("like"),
        "changed": trial["set"],
        "command": command(trial),
        "seed": trial["settings"].get("seed", 0),
        "core_seconds": {part: round(seconds, 1) for part, seconds in summary["core_seconds"].items()},
        "validation": _percent(summary["final"]),
        "random": _percent(summary["initial"]),
        "hardware": f"{environment['cpu']}, {environment['torch_threads']} thread",
        "versions": {"python": environment["python"], **environment["packages"]},
        "commit": environment["git_commit"],
        "date": datetime.now(UTC).date().isoformat(),
    }


def command(trial: Record) -> str:
    given = " ".join(f"--set {key}={_toml(value)}" for key, value in trial["settings"].items())
    return f"fedssl run {trial['preset']} {given}"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _percent(measured: Record) -> Record:
    return {name: round(100 * value, 2) for name, value in measured.items() if name.startswith(("knn", "linear"))}


def run_all() -> None:
    """The list is read again after each trial: it may have grown."""
    while waiting := {name: trial for name, trial in listed().items() if not (RECORDS / f"{name}.json").exists()}:
        name, trial = next(iter(waiting.items()))
        record = run_one(name, trial)
        (RECORDS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(row(record), flush=True)


def records() -> Iterator[Record]:
    """In the order of the list; a trial that was not run has none."""
    for name, trial in listed().items():
        if (RECORDS / f"{name}.json").exists():
            yield read_json(RECORDS / f"{name}.json") | {"gone": trial.get("gone")}


def fair_random(record: Record, measure: str) -> float:
    """The better of the untrained encoder's two accuracies: BatchNorm as it came, and re-estimated."""
    return max(record["random"][measure], record["random"][f"{measure}_reestimated"])


def row(record: Record) -> str:
    trained, spent = record["validation"], record["core_seconds"]
    random = {measure: fair_random(record, measure) for measure in ("knn", "linear")}
    cells = [
        f"`{record['name']}`",
        f"{spent['training']:.0f} + {spent['evaluation']:.0f}",
        f"{random['knn']:.1f} / {random['linear']:.1f}",
        f"{trained['knn']:.1f} / {trained['linear']:.1f}",
        f"{trained['linear'] - random['linear']:+.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def settings(record: Record) -> str:
    """What a trial changed, as an item of a list."""
    changed = ", ".join(f"{key} {_toml(value)}" for key, value in record["changed"].items())
    gone = f" ({record['gone']})" if record.get("gone") else ""
    text = f"- `{record['name']}`: {'`' + record['like'] + '` with ' if record['like'] else ''}{changed}{gone}"
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False)


def table() -> str:
    known, rule = list(records()), "|---|---|---|---|---|"
    head = ["| trial | core-seconds | random kNN / linear | trained kNN / linear | gain, linear |", rule]
    return "".join(f"{line}\n" for line in [*head, *map(row, known), "", *map(settings, known)])


def with_tables(text: str) -> str:
    """The page with the table of today's records between its marks."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run_all()
    elif sys.argv[1:] == ["tables"]:
        DOCS.write_text(with_tables(DOCS.read_text()))
    else:
        sys.exit(__doc__)
