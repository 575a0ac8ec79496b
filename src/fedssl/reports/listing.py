"""The runs in a folder, one line each; a folder that is no whole run is listed with what is wrong with it."""

import time
from dataclasses import dataclass
from pathlib import Path

from fedssl.core.errors import FedsslError
from fedssl.experiment.config.texts import NOT_SET
from fedssl.experiment.records.run_record import CHECKPOINTS, RunRecord, check_files, describe_config, read_config
from fedssl.experiment.records.verdict import interval, verdict
from fedssl.reports.compare import duration, percent


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A line of the list."""

    name: str
    what: str = ""
    rounds: str = ""
    status: str
    verdict: str = ""
    knn: str = ""
    linear: str = ""
    seconds: str = ""
    age: str


def list_runs(folder: str | Path) -> list[Listed]:
    """Every run below a folder (or the folder itself, when it is one), the oldest first."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FedsslError(f"{folder}: there is no such folder: name one that has run folders in it")
    if (folder / "config.toml").is_file():
        return [_listed(folder)]
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return [_listed(path) for path in sorted(folders, key=lambda path: (_written(path), path.name))]


def _listed(path: Path) -> Listed:
    name, age = path.resolve().name, _age(time.time() - _written(path))
    try:
        if (path / "config.toml").is_file() and not (path / "summary.json").exists():
            return _unfinished(path, name, age)
        record = RunRecord.read(path)
    except FedsslError as error:
        reason = str(error).replace(f"{path}: ", "").replace(f"{path}/", "")
        return Listed(name=name, status=f"broken: {reason}", age=age)
    planned, judged = record.config.get("rounds", "?"), verdict(record)
    done = record.summary.get("rounds", len(record.trained))
    return Listed(
        name=name,
        what=record.title,
        rounds=f"{done}/{planned}",
        status=record.status,
        verdict=judged.word if judged else NOT_SET,
        knn=_gained(record, "knn"),
        linear=_gained(record, "linear"),
        seconds=duration(record.summary.get("seconds")),
        age=age,
    )


def _unfinished(path: Path, name: str, age: str) -> Listed:
    """A run that has not come to its end: it is running, or it was killed."""
    config = read_config(path)
    check_files(path)
    done = max((int(one.name[-6:]) for one in path.glob(CHECKPOINTS)), default=0)
    status = "running, or killed: the same command resumes it"
    rounds_done = f"{done}/{config.get('rounds', '?')}"
    unknown = dict.fromkeys(("verdict", "knn", "linear", "seconds"), NOT_SET)
    return Listed(name=name, what=describe_config(config), rounds=rounds_done, status=status, age=age, **unknown)


def _gained(record: RunRecord, measure: str) -> str:
    """From the first encoder to the trained one, each at its best, and the 95 % interval of the gain."""
    first, gain = record.baseline(measure), record.gain(measure)
    if gain is None:
        return NOT_SET if first is None else f"{percent(first)} → {NOT_SET}"
    between = interval(gain)
    return f"{percent(first)} → {percent(gain.trained.accuracy)}" + (f" ({between})" if between else "")


def _written(path: Path) -> float:
    """When the run was last written to."""
    known = [path / name for name in ("summary.json", "rounds.jsonl", "config.toml")]
    return max([file.stat().st_mtime for file in known if file.exists()] or [path.stat().st_mtime])


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"
