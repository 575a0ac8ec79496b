"""The run folder: settings, environment, partition, rounds, checkpoints, encoder, summary; one process writes it."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedssl.core.checksums import GrowingFile, Seal, Seals, measure, signed, signed_json
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import UNFINISHED, sweep, write_atomically
from fedssl.core.lines import read_lines
from fedssl.experiment.records.metrics import csv_text
from fedssl.experiment.records.run_record import (
    ENCODER,
    SUMMARY,
    read_environment,
    read_json,
    read_rounds,
    read_summary,
)

LOCK, OWNER = ".lock", ".owner.json"
FLOWER = "flower"  # what a deployment's server keeps beside its run
PROBE = ".probe"
BEFORE_CONFIG = ("environment.json", "partition.json", "refused.jsonl")  # config.toml is written last
SIGNED = ("config.toml", "environment.json")  # their last line is their checksum: they are replaced during the run
WRITTEN_ONCE = ("partition.json", "refused.jsonl")
GROWING = ("rounds.jsonl", "metrics.csv", "failures.jsonl", "profile.jsonl", "evaluation.jsonl")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.encoder, self.partition, self.noise_key = path / ENCODER, path / "partition.json", path / "noise.key"
        self.clients, self.checkpoints, self.flower = path / "clients", path / "checkpoints", path / FLOWER
        self.base_encoder, self.features = path / "base-encoder", path / "features"
        self.secure = path / "secure.json"  # what the server must remember of secure sums; nothing secret
        self._grown: dict[str, GrowingFile] = {}

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new or empty folder, or one of a run; that it can be written to is said now, not at the ninetieth round."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            owned = (path / OWNER).exists()
            foreign = [entry.name for entry in path.iterdir() if not _left_by_us(entry.name, owned)]
            if (path / "checkpoints").exists() and not (path / "config.toml").exists():
                raise DamagedError(
                    f"{path / 'config.toml'}: is missing: put back a copy of it, or choose another --out"
                )
            if foreign and not (path / "config.toml").exists():
                raise FedsslError(f"{path}: the folder is not empty and holds no run: choose another with --out")
            probe = path / PROBE
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise FedsslError(f"{path}: cannot make or write to the run folder: {error.strerror}") from None
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes here meanwhile; the lock of a process that died is free."""
        try:
            held = FileLock(self.path / LOCK).acquire(timeout=0)
        except Timeout:
            raise FedsslError(f"{self.path}: in use by {self._owner()}: wait for it, or choose another --out") from None
        with held:
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat()}
            write_atomically(self.path / OWNER, json.dumps(owner))
            sweep(self.path)
            yield

    def _owner(self) -> str:
        try:
            owner = read_json(self.path / OWNER)
            return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
        except (FedsslError, KeyError):
            return "another process"

    def write_config(self, toml: str) -> None:
        write_atomically(self.path / "config.toml", signed(toml, ".toml"))

    def write_environment(self, environment: dict[str, Any]) -> None:
        self._write_json("environment.json", environment)

    def add_resumption(self, about: dict[str, Any]) -> None:
        """Notes in environment.json that the run was resumed, when, where and what had changed."""
        environment = read_environment(self.path)
        self.write_environment(environment | {"resumed": [*environment.get("resumed", []), about]})

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._write_json(SUMMARY, summary)

    def reopen(self) -> dict[str, Any]:
        """A summary that an earlier process wrote no longer says how the run stands, nor vouches for what changes."""
        try:
            summary = read_summary(self.path)
        except FedsslError:  # there is none, or it is damaged: the run writes another when it ends
            (self.path / SUMMARY).unlink(missing_ok=True)
            return {}
        kept = {key: value for key, value in summary.items() if key not in ("files", "weights_sha256")}
        self.write_summary(kept | {"status": "interrupted"})
        return summary

    def seals(self) -> Seals:
        """The seals of all files written so far: readers, and a process that resumes the run, check files by them."""
        own: Seals = dict.fromkeys(SIGNED)
        growing = [name for name in GROWING if name in self._grown or (self.path / name).exists()]
        return own | self._written_once | {name: self._growing(name).seal() for name in growing}

    @cached_property
    def _written_once(self) -> dict[str, Seal]:
        return {name: measure(self.path / name) for name in WRITTEN_ONCE if (self.path / name).exists()}

    def _growing(self, name: str) -> GrowingFile:
        if name not in self._grown:
            self._grown[name] = GrowingFile(self.path / name)
        return self._grown[name]

    def write_refused(self, refused: list[dict[str, Any]]) -> None:
        """One line for each file of the user's that is not used; without any, no file."""
        if refused:
            write_atomically(self.path / "refused.jsonl", "".join(json.dumps(one) + "\n" for one in refused))

    def append_round(self, record: dict[str, Any]) -> None:
        """One line per round, on disk before the next round starts."""
        self._growing("rounds.jsonl").append(json.dumps(record))
        rows, metrics = csv_text([record]).rstrip("\n"), self._growing("metrics.csv")
        metrics.append(rows.splitlines()[1] if metrics.size else rows)

    def append_profile(self, record: dict[str, Any]) -> None:
        """One line per round: its wall time and the seconds of each part."""
        self._growing("profile.jsonl").append(json.dumps(record))

    def append_failure(self, record: dict[str, Any]) -> None:
        """One line per client that failed in a round, with the traceback."""
        self._growing("failures.jsonl").append(json.dumps(record))

    def append_evaluation(self, record: dict[str, Any]) -> None:
        """One line a result of `fedssl evaluate`."""
        self._growing("evaluation.jsonl").append(json.dumps(record))

    def write_evaluated(self, summary: dict[str, Any], headline: list[dict[str, Any]]) -> None:
        """Puts what was evaluated into the summary, which from now on vouches for evaluation.jsonl too."""
        seals = summary.get("files", {}) | {"evaluation.jsonl": self._growing("evaluation.jsonl").seal()}
        self.write_summary(summary | {"evaluation": headline, "files": seals})

    def read_rounds(self) -> list[dict[str, Any]]:
        return read_rounds(self.path)

    def written_rounds(self, name: str = "rounds.jsonl", seal: Seal | None = None) -> list[dict[str, Any]]:
        """The whole lines of a file: a killed process may have left a torn one, and lines that no seal covers."""
        path = self.path / name
        lines = read_lines(path, torn=True, size=seal["bytes"] if seal else None) if path.exists() else []
        by_round = {record["round"]: record for record in lines if isinstance(record.get("round"), int)}
        return [by_round[number] for number in sorted(by_round)]

    def cut_back(self, last_round: int, seals: Seals) -> list[dict[str, Any]]:
        """Takes back what was recorded after `last_round`: those rounds are run again."""
        records = self._cut("rounds.jsonl", last_round, seals)
        write_atomically(self.path / "metrics.csv", csv_text(records))
        if (self.path / "profile.jsonl").exists():
            self._cut("profile.jsonl", last_round, seals)
        self._grown.clear()
        return records

    def _cut(self, name: str, last_round: int, seals: Seals) -> list[dict[str, Any]]:
        kept = [record for record in self.written_rounds(name, seals.get(name)) if record["round"] <= last_round]
        write_atomically(self.path / name, "".join(json.dumps(record) + "\n" for record in kept))
        return kept

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.path / name, signed_json(json.dumps(content, indent=2)))


def _left_by_us(name: str, owned: bool) -> bool:
    """Whether a file of a folder without config.toml is of a run that was killed at its start."""
    ours = name in (LOCK, OWNER, PROBE, FLOWER) or name.endswith(UNFINISHED)
    return ours or (owned and name in BEFORE_CONFIG)
