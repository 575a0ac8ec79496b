"""Sums over the rounds of a run, kept as it goes: ten thousand rounds need no more memory than ten."""

import statistics
from collections.abc import Sequence
from typing import Any

from fedssl.experiment.observers import Observer, Start


class Totals(Observer):
    """Fed with every round's record, in order; a resumed run feeds the recorded ones again and has the same bits."""

    def __init__(self) -> None:
        self._mu, self._mus = 0.0, 0
        self._ema, self._rounds = 0.0, 0
        self._bytes = {"bytes_up": 0, "bytes_down": 0}
        self._core_seconds = {"training": 0.0, "evaluation": 0.0}
        self._loss: float | None = None
        self._failures = 0

    def start(self, run: Start) -> None:
        for record in run.recorded:
            self.add(record)

    def round_finished(self, record: dict[str, Any], outcome: object) -> None:  # noqa: ARG002
        self.add(record)

    def add(self, record: dict[str, Any]) -> None:
        for name, seconds in record.get("core_seconds", {}).items():  # older records have none
            self._core_seconds[name] += seconds
        for name in self._bytes:  # weights that sites were sent to look at
            self._bytes[name] += record.get("at_sites", {}).get(name, 0)
        if not record["clients"]:
            return  # round 0
        mus = [client["mu"] for client in record["clients"] if "mu" in client]
        if not mus and record.get("mu") is not None:  # of a secure sum the mean is all that is known
            mus = [record["mu"]] * len(record["clients"])
        for mu in mus:
            self._mu, self._mus = self._mu + mu, self._mus + 1
        for client in record["clients"]:
            for name in self._bytes:
                self._bytes[name] += client[name]
        self._ema, self._rounds = self._ema + record["ema_share"], self._rounds + 1
        self._loss = record["loss"]
        self._failures += len(record.get("failures", []))

    def values(self) -> dict[str, Any]:
        """What summary.json says of all rounds together."""
        return {
            "mean_mu": self._mu / self._mus if self._mus else None,
            "ema_share": self._ema / self._rounds if self._rounds else None,
            "final_loss": self._loss,
            **self._bytes,
            "failures": self._failures,
            "core_seconds": self._core_seconds,
        }


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
