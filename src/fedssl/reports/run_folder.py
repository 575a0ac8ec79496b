"""The run folder: config.toml, environment.json, partition.json, rounds.jsonl, metrics.csv, encoder, summary.json."""

import json
import os
from pathlib import Path
from typing import Any

from fedssl.errors import FedsslError
from fedssl.files import write_atomically
from fedssl.reports.metrics import append_csv
from fedssl.reports.run_record import read_rounds


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new or empty folder that can be written to; said before the first round, not at the ninetieth."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise FedsslError(f"{path}: the folder is not empty: choose another with --out")
            probe = path / ".probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise FedsslError(f"{path}: cannot make or write to the run folder: {error.strerror}") from None
        return cls(path)

    @property
    def encoder(self) -> Path:
        return self.path / "encoder.safetensors"

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    @property
    def partition(self) -> Path:
        return self.path / "partition.json"

    @property
    def features(self) -> Path:
        return self.path / "features"

    def write_config(self, toml: str) -> None:
        write_atomically(self.path / "config.toml", toml)

    def write_environment(self, environment: dict[str, Any]) -> None:
        self._write_json("environment.json", environment)

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._write_json("summary.json", summary)

    def write_refused(self, refused: list[dict[str, Any]]) -> None:
        """One line for each file of the user's that is not used; without any, no file."""
        if refused:
            write_atomically(self.path / "refused.jsonl", "".join(json.dumps(one) + "\n" for one in refused))

    def append_round(self, record: dict[str, Any]) -> None:
        """One line a round, on disk before the next round starts."""
        self._append("rounds.jsonl", record)
        append_csv(self.path / "metrics.csv", record)

    def append_evaluation(self, record: dict[str, Any]) -> None:
        """One line a result of `fedssl evaluate`."""
        self._append("evaluation.jsonl", record)

    def read_rounds(self) -> list[dict[str, Any]]:
        return read_rounds(self.path / "rounds.jsonl")

    def _append(self, name: str, record: dict[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.path / name, json.dumps(content, indent=2) + "\n")
