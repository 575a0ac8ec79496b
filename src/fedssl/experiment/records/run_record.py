"""What a run wrote down, read back as plain values; needs no torch, so listing and comparing answer at once."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.core.checksums import Seals, problems_in, read_signed
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import Place
from fedssl.core.lines import read_lines
from fedssl.core.names import client_title
from fedssl.evaluation.score import Best, Gain

Table = dict[str, Any]
SUMMARY, ENCODER = "summary.json", "encoder.safetensors"
MENDED = "put back a copy of it, or run the same `fedssl run` command again, which makes again what it can"
CHECKPOINTS = f"checkpoints/round-{'[0-9]' * 6}"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The settings and numbers of a run folder, without its weights and images."""

    path: Path
    config: Table
    summary: Table
    rounds: list[Table]
    environment: Table

    @classmethod
    def read(cls, path: Place) -> "RunRecord":
        """All of a run's records; what is damaged is an error that names the files, or the file and the line."""
        path = Path(path)
        for needed in ("config.toml", SUMMARY, "rounds.jsonl"):
            if not (path / needed).is_file():
                raise FedsslError(f"{path}: not a run folder ({needed} is missing)")
        summary = read_summary(path)
        check_files(path)
        read_signed(path / "config.toml", must=False)  # older summaries do not vouch for it
        return cls(
            path=path,
            config=_config_in(path / "config.toml"),
            summary=summary,
            rounds=_rounds_in(path),
            environment=read_environment(path),
        )

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "unknown"))

    @property
    def evaluation(self) -> list[Table]:
        """What `fedssl evaluate` found, its headline: one entry for each encoder, dataset, protocol and mode."""
        return list(self.summary.get("evaluation", []))

    @property
    def profile(self) -> list[Table]:
        """Where the time of each round went; nothing when the run did not ask for it."""
        path = self.path / "profile.jsonl"
        return read_lines(path) if path.exists() else []

    @property
    def title(self) -> str:
        return describe_config(self.config, len(self.summary.get("data", {}).get("clients", [])))

    @property
    def trained(self) -> list[Table]:
        """The rounds in which clients trained: all but round 0."""
        return [record for record in self.rounds if record["clients"]]

    @property
    def own_start(self) -> bool:
        """Did it start from weights in a file, not at random?"""
        return bool(self.summary.get("init"))

    def client(self, number: int) -> str:
        """A client's title, with its name where the data name it."""
        return client_title(number, self.summary.get("data", {}).get("client_names", []))

    def first(self, measure: str) -> float | None:
        """A measure of the encoder that the run began with."""
        return _number(self.summary.get("initial", {}).get(measure))

    def baseline(self, measure: str) -> float | None:
        """What a trained encoder must beat: the first one, in the BatchNorm mode that suits it better."""
        best = self.initial_best(measure)
        return best.accuracy if best else None

    def initial_best(self, measure: str) -> Best | None:
        return Best.of(self.summary.get("initial", {}), measure)

    def last(self, measure: str) -> float | None:
        """The newest value of a measure: the final one, or of an interrupted run the last that was taken."""
        final = _number(self.summary.get("final", {}).get(measure))
        if final is not None:
            return final
        known = [record[measure] for record in self.trained if record.get(measure) is not None]
        return _number(known[-1]) if known else None

    def trained_best(self, measure: str) -> Best | None:
        """The newest accuracy: in the better BatchNorm mode, or of an interrupted run in the one that it watched."""
        newest, sd = self.last(measure), self.last(f"{measure}_sd")
        watched = None if newest is None else Best(newest, sd=sd)
        return Best.of(self.summary.get("final", {}), measure) or watched

    def gain(self, measure: str) -> Gain | None:
        """As the run wrote it, or of older and interrupted runs from the two accuracies; None: one is not known."""
        known = self.summary.get("gain", {}).get(measure)
        if known:
            return _gain(known)
        baseline, trained = self.initial_best(measure), self.trained_best(measure)
        return Gain.unpaired(baseline, trained, self._test_images()) if baseline and trained else None

    def client_gains(self, measure: str) -> dict[int, Gain]:
        """The same of every client's own encoder, where the run evaluated them."""
        known = self.summary.get("clients", {})
        return {int(client): _gain(gains[measure]) for client, gains in known.items() if measure in gains}

    def _test_images(self) -> int | None:
        """How many test images the accuracies were counted over; older runs know it only if they were evaluated."""
        own = [one["n"] for one in self.evaluation if one["test_images"] == "all" and one["data"] == self._data_name]
        return self.summary.get("data", {}).get("test") or next(iter(own), None)

    @property
    def _data_name(self) -> str:
        return _name(self.config, "data")


def describe_config(config: Table, num_clients: int = 0) -> str:
    """Method, rule and data of a config in one phrase; the number of clients is the data's, if it is known."""
    method, rule, data = (_name(config, table) for table in ("method", "update_rule", "data"))
    clients = num_clients or config.get("partition", {}).get("num_clients", "?")
    return f"{method} + {rule}, {data}, {clients} clients ({_name(config, 'partition')})"


def check_config(folder: Path) -> Path:
    """The file of a run's settings, if it is what the run wrote."""
    check_files(folder, "config.toml")
    read_signed(folder / "config.toml", must=False)  # before its first checkpoint nobody else vouches for it
    return folder / "config.toml"


def read_config(folder: Path) -> Table:
    return _config_in(check_config(folder))


def _config_in(path: Path) -> Table:
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FedsslError(f"{path}: not readable as TOML ({error})") from None
    wrong = [name for name in ("method", "update_rule", "data", "partition") if not isinstance(config.get(name), dict)]
    if wrong:
        raise FedsslError(f"{path}: not the config of a run (no table [{wrong[0]}])")
    return config


def read_summary(folder: Path) -> Table:
    """What a run came to; one that vouches for other files has a checksum of its own."""
    path = folder / SUMMARY
    try:
        return read_json(path, must=b'"files": ' in path.read_bytes())
    except DamagedError as error:
        raise DamagedError(f"{error}: {MENDED}") from None
    except OSError as error:
        raise FedsslError(f"{path}: cannot be read ({error.strerror})") from None


def read_environment(folder: Path) -> Table:
    path = folder / "environment.json"
    return read_json(path) if path.exists() else {}


def vouched(folder: Path) -> Seals:
    """What a run's summary, or before there is one its newest checkpoint, says of its files; nothing: an older run."""
    try:
        return dict(read_summary(folder)["files"])
    except (FedsslError, KeyError):
        pass
    for manifest in sorted(folder.glob(f"{CHECKPOINTS}/manifest.json"), reverse=True):
        try:
            return dict(read_json(manifest, must=True)["course"].get("files", {}))
        except FedsslError:
            continue
    return {}


def check_files(folder: Path, *names: str) -> None:
    """Refuses files (left out: any) that are not what the run wrote, all named at once."""
    seals = vouched(folder)
    chosen = {name: seals[name] for name in names or seals if name in seals}
    problems = [f"{folder / name}: {problem}" for name, problem in problems_in(folder, chosen).items()]
    if problems:
        raise DamagedError(f"{'; '.join(problems)}: {MENDED}")


def read_json(path: Path, *, must: bool = False) -> Table:
    """A JSON object, without the checksum that may be its last line, or must be."""
    try:
        content = json.loads(read_signed(path, must=must))
    except ValueError as error:
        raise FedsslError(f"{path}: cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise FedsslError(f"{path}: cannot be read (not a JSON object)")
    content.pop("sha256", None)
    return content


def read_rounds(folder: Path) -> list[Table]:
    """One record a round, in the order they were written."""
    check_files(folder, "rounds.jsonl")
    return _rounds_in(folder)


def _rounds_in(folder: Path) -> list[Table]:
    path = folder / "rounds.jsonl"
    records = read_lines(path)
    for number, record in enumerate(records, start=1):
        if not isinstance(record.get("round"), int) or not isinstance(record.get("clients"), list):
            raise FedsslError(f"{path}, line {number}: not the record of a round: remove the line or run again")
    return records


def _name(config: Table, table: str) -> str:
    return str(config.get(table, {}).get("name", "?"))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _gain(known: Table) -> Gain:
    parts = {"baseline": Best(**known["baseline"]), "trained": Best(**known["trained"])}
    return Gain(**{**known, **parts, "interval": tuple(known["interval"])})
