"""Recorded runs: what results/*.toml lists is run and kept as small records, of which the tables of docs are made.

    python -m scripts.trials run [LIST …]   runs what the lists have and no record holds yet, one after another
    python -m scripts.trials tables         writes the tables of the documentation from the records

Each runs in one process with one thread, so that its core-seconds are its own. A killed one is resumed.
"""

import hashlib
import json
import statistics
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedssl.experiment.experiment import load
from fedssl.experiment.records.run_record import read_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS, RUNS = ROOT / "results", ROOT / "runs"
END = "<!-- end of results -->"
MEASURES = ("knn", "linear")
Record = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One line of a list, with all its settings: those of all, those of the one it is like, its own."""

    name: str
    preset: str
    like: str
    changed: Record
    settings: Record
    seeds: int = 1
    gone: str = ""  # why it can no longer be run
    note: str = ""  # how to read its numbers

    def runs(self) -> Iterator[tuple[str, Record]]:
        """The name and the settings of each run: one for every seed."""
        yield self.name, self.settings
        for seed in range(1, self.seeds):
            yield f"{self.name}-seed-{seed}", self.settings | {"seed": seed}


@dataclass(frozen=True)
class TrialList:
    """A file results/NAME.toml, its records results/NAME/*.json, and the pages that show them."""

    name: str
    pages: list[Path]
    trials: dict[str, Trial]
    results: Path = RESULTS

    @classmethod
    def read(cls, path: Path) -> "TrialList":
        content, trials = tomllib.loads(path.read_text()), dict[str, Trial]()
        for name, given in content["trials"].items():
            above = trials[given["like"]] if "like" in given else None
            trials[name] = Trial(
                name=name,
                preset=given.get("preset", above.preset if above else content["preset"]),
                like=given.get("like", ""),
                changed=({"preset": own} if (own := given.get("preset", name)) != name else {}) | given["set"],
                settings=(above.settings if above else content["common"]) | given["set"],
                seeds=given.get("seeds", 1),
                gone=given.get("gone", ""),
                note=given.get("note", ""),
            )
        return cls(path.stem, [ROOT / page for page in content["pages"]], trials, path.parent)

    @property
    def begin(self) -> str:
        return f"<!-- results: {self.name} -->\n"

    def record_path(self, run: str) -> Path:
        return self.results / self.name / f"{run}.json"

    def waiting(self) -> list[tuple[Trial, str, Record]]:
        """What is still to be run, the first seed of every trial before the second of any."""
        jobs = [(trial, *run) for trial in self.trials.values() for run in trial.runs() if not trial.gone]
        without_record = [job for job in jobs if not self.record_path(job[1]).exists()]
        return sorted(without_record, key=lambda job: job[2].get("seed", 0))

    def records(self, trial: Trial) -> list[Record]:
        """Those that are there, by seed."""
        paths = [self.record_path(run) for run, _ in trial.runs()]
        return [read_json(path) for path in paths if path.exists()]

    def table(self) -> str:
        known = [(trial, records) for trial in self.trials.values() if (records := self.records(trial))]
        if not known:
            return "Not run yet.\n"
        head = "| trial | seeds | core-seconds | random kNN / linear | trained kNN / linear | gain, linear |"
        lines = [head, "|---|---|---|---|---|---|", *(row(trial, records) for trial, records in known), ""]
        return "".join(f"{line}\n" for line in [*lines, *(changes(trial) for trial, _ in known if trial.changed)])

    def shown_in(self, text: str) -> str:
        """The page with the table of today's records between its marks."""
        before, rest = text.split(self.begin)
        return before + self.begin + self.table() + END + rest.split(END, 1)[1]


def lists(folder: Path = RESULTS) -> list[TrialList]:
    return [TrialList.read(path) for path in sorted(folder.glob("*.toml"))]


def run_one(trial: Trial, name: str, settings: Record, folder: Path) -> Record:
    """Runs one trial with one seed, or what is left of it, and makes its record from the run folder."""
    summary = load(trial.preset, settings).run(folder).summary
    environment = read_json(folder / "environment.json")
    return {
        "name": name,
        "command": command(trial.preset, settings),
        "seed": settings.get("seed", 0),
        "core_seconds": {part: round(seconds, 1) for part, seconds in summary["core_seconds"].items()},
        "random": _percent(summary["initial"]),
        "trained": _percent(summary["final"]),
        **({"clients": _of_clients(summary["clients"])} if "clients" in summary else {}),
        "hardware": f"{environment['cpu']}, {environment['torch_threads']} thread",
        "versions": {"python": environment["python"], **environment["packages"]},
        "commit": environment["git_commit"],
        "date": datetime.now(UTC).date().isoformat(),
    }


def command(preset: str, settings: Record) -> str:
    return f"fedssl run {preset} {' '.join(f'--set {key}={as_toml(value)}' for key, value in settings.items())}"


def as_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _percent(measured: Record) -> Record:
    return {name: round(100 * value, 2) for name, value in measured.items() if name.startswith(MEASURES)}


def _of_clients(gains: Record) -> Record:
    """kNN in % of each client's own encoder after the last round, by client."""
    return {client: round(100 * gain["knn"]["trained"]["accuracy"], 2) for client, gain in gains.items()}


def run_all(names: Sequence[str]) -> None:
    """The lists are read again after each run: they may have grown."""
    while waiting := [(one, *job) for one in lists() if not names or one.name in names for job in one.waiting()]:
        chosen, trial, run, settings = waiting[0]
        record = run_one(trial, run, settings, RUNS / chosen.name / run)
        chosen.record_path(run).parent.mkdir(exist_ok=True)
        chosen.record_path(run).write_text(json.dumps(record, indent=1) + "\n")
        print(row(trial, [record]), flush=True)


def fair_random(record: Record, measure: str) -> float:
    """The better of the untrained encoder's two accuracies: BatchNorm as it came, and re-estimated."""
    return max(value for name, value in record["random"].items() if name in (measure, f"{measure}_reestimated"))


def row(trial: Trial, records: Sequence[Record]) -> str:
    gains = [one["trained"]["linear"] - fair_random(one, "linear") for one in records]
    seconds = [statistics.fmean(one["core_seconds"][part] for one in records) for part in ("training", "evaluation")]
    cells = [
        f"`{trial.name}`",
        str(len(records)),
        f"{seconds[0]:.0f} + {seconds[1]:.0f}",
        " / ".join(mean_and_spread([fair_random(one, measure) for one in records]) for measure in MEASURES),
        " / ".join(mean_and_spread([one["trained"][measure] for one in records]) for measure in MEASURES),
        mean_and_spread(gains, "+"),
    ]
    return f"| {' | '.join(cells)} |"


def mean_and_spread(values: Sequence[float], sign: str = "") -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{sign}.1f}{spread}"


def changes(trial: Trial) -> str:
    """What a trial changed, as an item of a list."""
    changed = ", ".join(f"{key} {as_toml(value)}" for key, value in trial.changed.items())
    about = f" ({trial.gone or trial.note})" if trial.gone or trial.note else ""
    text = f"- `{trial.name}`: {f'`{trial.like}` with ' if trial.like else ''}{changed}{about}"
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False)


def fingerprint(shown: Any) -> str:
    """The same for the same numbers."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]


def save_picture(figure: Figure, path: Path, shown: Any) -> None:
    """With the fingerprint of what it shows, so that a test sees when it is of other records than today's."""
    figure.savefig(path, metadata={"Shows": fingerprint(shown)})


def write_tables() -> None:
    for one in lists():
        for page in one.pages:
            page.write_text(one.shown_in(page.read_text()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run_all(sys.argv[2:])
    elif sys.argv[1:] == ["tables"]:
        write_tables()
    else:
        sys.exit(__doc__)
