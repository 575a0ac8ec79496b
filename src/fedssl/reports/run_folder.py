"""The run folder: settings, environment, partition, a line a round, checkpoints, encoder, summary; for one process."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedssl.errors import FedsslError
from fedssl.files import append_line, sweep, write_atomically
from fedssl.reports.metrics import append_csv, csv_text
from fedssl.reports.run_record import read_json, read_rounds

LOCK, OWNER = ".lock", ".owner.json"
FLOWER = "flower"  # what a deployment's server keeps beside its run


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new or empty folder, or one of a run; that it can be written to is said now, not at the ninetieth round."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            foreign = [entry.name for entry in path.iterdir() if entry.name not in (LOCK, OWNER, FLOWER)]
            if foreign and not (path / "config.toml").exists():
                raise FedsslError(f"{path}: the folder is not empty and holds no run: choose another with --out")
            probe = path / ".probe"
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

    @property
    def encoder(self) -> Path:
        return self.path / "encoder.safetensors"

    @property
    def noise_key(self) -> Path:
        return self.path / "noise.key"

    @property
    def base_encoder(self) -> Path:
        return self.path / "base-encoder"

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def partition(self) -> Path:
        return self.path / "partition.json"

    @property
    def flower(self) -> Path:
        return self.path / FLOWER

    @property
    def features(self) -> Path:
        return self.path / "features"

    def write_config(self, toml: str) -> None:
        write_atomically(self.path / "config.toml", toml)

    def write_environment(self, environment: dict[str, Any]) -> None:
        self._write_json("environment.json", environment)

    def add_resumption(self, about: dict[str, Any]) -> None:
        """Notes in environment.json that the run was gone on with, when, where and what had changed."""
        path = self.path / "environment.json"
        environment = read_json(path) if path.exists() else {}
        self.write_environment(environment | {"resumed": [*environment.get("resumed", []), about]})

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._write_json("summary.json", summary)

    def reopen(self) -> None:
        """A summary that an earlier process wrote no longer says how the run stands."""
        if (self.path / "summary.json").exists():
            self.write_summary(read_json(self.path / "summary.json") | {"status": "interrupted"})

    def write_refused(self, refused: list[dict[str, Any]]) -> None:
        """One line for each file of the user's that is not used; without any, no file."""
        if refused:
            write_atomically(self.path / "refused.jsonl", "".join(json.dumps(one) + "\n" for one in refused))

    def append_round(self, record: dict[str, Any]) -> None:
        """One line a round, on disk before the next round starts."""
        append_line(self.path / "rounds.jsonl", json.dumps(record))
        append_csv(self.path / "metrics.csv", record)

    def append_profile(self, record: dict[str, Any]) -> None:
        """One line a round: its wall time and the seconds of each part."""
        append_line(self.path / "profile.jsonl", json.dumps(record))

    def append_failure(self, record: dict[str, Any]) -> None:
        """One line a client that failed in a round, with the traceback."""
        append_line(self.path / "failures.jsonl", json.dumps(record))

    def append_evaluation(self, record: dict[str, Any]) -> None:
        """One line a result of `fedssl evaluate`."""
        append_line(self.path / "evaluation.jsonl", json.dumps(record))

    def read_rounds(self) -> list[dict[str, Any]]:
        return read_rounds(self.path / "rounds.jsonl")

    def written_rounds(self, name: str = "rounds.jsonl") -> list[dict[str, Any]]:
        """The whole lines of a file: a killed process may have left a torn one, and lines of a lost round."""
        path = self.path / name
        found: dict[int, dict[str, Any]] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
                found[int(record["round"])] = record
            except (ValueError, KeyError, TypeError):
                continue
        return [found[number] for number in sorted(found)]

    def cut_back(self, last_round: int) -> list[dict[str, Any]]:
        """Takes back what was recorded after `last_round`: those rounds are run again."""
        records = [record for record in self.written_rounds() if record["round"] <= last_round]
        write_atomically(self.path / "rounds.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        write_atomically(self.path / "metrics.csv", csv_text(records))
        if (self.path / "profile.jsonl").exists():
            kept = [record for record in self.written_rounds("profile.jsonl") if record["round"] <= last_round]
            write_atomically(self.path / "profile.jsonl", "".join(json.dumps(record) + "\n" for record in kept))
        return records

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.path / name, json.dumps(content, indent=2) + "\n")
