"""Which runs an experiment of the paper needs: one for each distinct config, shared between cells and experiments."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from fedssl.core.errors import FedsslError
from fedssl.core.registry import unknown
from fedssl.evaluation.protocols import PROTOCOLS
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.config.schema import Config
from fedssl.experiment.records.run_record import read_summary
from fedssl.paper.catalogue import Cell, Column, Row, Study
from fedssl.paper.scales import LeftOut, Scale

Entry = TypeVar("Entry", Row, Column)
# What cannot change results: where and how fast a run is made, and what is kept of it.
WITHOUT_EFFECT = ("device", "engine", "workers", "profile", "keep_checkpoints", "failures")


def run_key(config: Config) -> str:
    """The same for configs that lead to the same results."""
    raw = {key: value for key, value in config.as_raw().items() if key not in WITHOUT_EFFECT}
    return sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()[:10]


@dataclass(kw_only=True)
class PlannedRun:
    """A run, what must be evaluated after it, and the cells that wait for it."""

    key: str
    config: Config
    folder: Path
    protocols: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.name

    def trained(self) -> bool:
        if not (self.folder / "summary.json").exists():
            return False
        summary = read_summary(self.folder)
        return summary.get("status") == "finished" and summary.get("rounds") == self.config.run.rounds

    def missing_protocols(self, epochs: dict[str, int]) -> list[str]:
        """What is still to be evaluated of a run that is trained."""
        return [name for name in self.protocols if evaluation_of(self.folder, name, epochs) is None]

    def finished(self, epochs: dict[str, int]) -> bool:
        return self.trained() and not self.missing_protocols(epochs)


def evaluation_of(folder: Path, protocol: str, epochs: dict[str, int]) -> dict[str, Any] | None:
    """The recorded headline of a protocol (paper's variant, running BatchNorm) with this many epochs."""
    wanted = {"protocol": protocol, "variant": "paper", "batchnorm": "running", "test_images": "all"}
    for entry in read_summary(folder).get("evaluation", []):
        same = all(entry.get(name) == value for name, value in wanted.items())
        length = epochs.get(PROTOCOLS[protocol]["paper"].trains)
        if same and entry["encoder"] in ("global", "clients") and entry["settings"].get("epochs") == length:
            return dict(entry)
    return None


@dataclass
class Plan:
    """The runs of some experiments at a scale, and the cells that have none."""

    scale: Scale
    folder: Path
    _: KW_ONLY
    runs: dict[str, PlannedRun] = field(default_factory=dict)
    keys: dict[tuple[str, str, str, int], str] = field(default_factory=dict)
    left_out: list[tuple[Cell, str]] = field(default_factory=list)

    def run_of(self, cell: Cell, seed: int) -> PlannedRun | None:
        key = self.keys.get(_place(cell, seed))
        return self.runs[key] if key else None

    def unfinished(self) -> list[PlannedRun]:
        return [run for run in self.runs.values() if not run.finished(self.scale.evaluation_epochs)]


def _place(cell: Cell, seed: int) -> tuple[str, str, str, int]:
    return cell.study.name, cell.row.title, cell.column.label, seed


def make_plan(
    studies: Iterable[Study],
    scale: Scale,
    out: Path,
    seeds: int,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> Plan:
    """Every run that the cells need, once; `rows` and `columns` choose by label or a part of it."""
    plan, existing = Plan(scale, out / scale.name), _existing(out / scale.name)
    for study in studies:
        for cell in choose_cells(study, rows, columns):
            _add(plan, cell, seeds, existing)
    return plan


def _add(plan: Plan, cell: Cell, seeds: int, existing: dict[str, Path]) -> None:
    first = plan.scale.configure(cell)
    if isinstance(first, LeftOut):
        plan.left_out.append((cell, first.reason))
        return
    for seed in range(seeds):
        config = replace(first, run=first.run.model_copy(update={"seed": seed}))
        key = run_key(config)
        run = plan.runs.get(key)
        if run is None:
            folder = existing.get(key, plan.folder / f"{_readable(config)}-{key}")
            run = plan.runs[key] = PlannedRun(key=key, config=config, folder=folder)
        plan.keys[_place(cell, seed)] = key
        run.cells.append(cell.title)
        if cell.protocol and cell.protocol not in run.protocols:
            run.protocols.append(cell.protocol)


def _readable(config: Config) -> str:
    return f"{config.method.name}-{config.update_rule.name}-{config.data.name}-seed{config.run.seed}"


def _existing(folder: Path) -> dict[str, Path]:
    """Runs that are there, by what their config means today: a setting that was added since has its default."""
    folders = {}
    for path in sorted(folder.glob("*/config.toml")):
        if key := key_of_folder(path.parent):
            folders[key] = path.parent
    return folders


def key_of_folder(folder: Path) -> str | None:
    """None: made by a version whose settings are no longer understood, or not there."""
    try:
        return run_key(load_config(str(folder / "config.toml")))
    except FedsslError:
        return None


def choose_cells(study: Study, rows: Sequence[str], columns: Sequence[str]) -> list[Cell]:
    """The cells in rows and columns of these texts; no text: all."""
    in_rows, in_columns = choose(study.rows, rows), choose(study.columns, columns)
    return [cell for cell in study.cells() if cell.row in in_rows and cell.column in in_columns]


def choose(entries: Sequence[Entry], texts: Sequence[str]) -> list[Entry]:
    """Rows or columns, each by its whole title, or by a part of it if that is nobody's whole title here."""
    titles, wanted = [entry.title.lower() for entry in entries], [text.lower() for text in texts]
    parts = [text for text in wanted if text not in titles]
    return [
        entry
        for entry, title in zip(entries, titles, strict=True)
        if not texts or title in wanted or any(text in title for text in parts)
    ]


def check_choice(studies: Sequence[Study], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Refuses a text that chooses nothing in any of the experiments."""
    for option, texts, kind in (("--rows", rows, "rows"), ("--columns", columns, "columns")):
        for text in texts:
            if not any(choose(getattr(study, kind), [text]) for study in studies):
                known = dict.fromkeys(entry.title for study in studies for entry in getattr(study, kind))
                raise unknown(f"{option}: there is no", text, known)
