"""What a person should know during a run: clients that collapse, start over, or ignore the global model."""

from collections.abc import Callable
from typing import Any

from fedssl.core.progress import Say, say_nothing
from fedssl.experiment.observers import Observer, Start
from fedssl.experiment.records.verdict import COLLAPSED_BELOW

IGNORING_ROUNDS = 5
EVERYBODY = -1


class RunWarnings(Observer):
    """Each warning once per client and run; `title` names a client, `mu_remedy` says what helps where mu stays 1."""

    def __init__(self, title: Callable[[int], str], say: Say = say_nothing, mu_remedy: str = "") -> None:
        self._title, self._mu_remedy, self._say = title, f" ({mu_remedy})" if mu_remedy else "", say
        self._ignoring: dict[int, int] = {}
        self._reported: set[tuple[str, int]] = set()

    def start(self, run: Start) -> None:
        for record in run.recorded:
            self.check(record)  # said before

    def round_finished(self, record: dict[str, Any], outcome: object) -> None:  # noqa: ARG002
        for warning in self.check(record):
            self._say(f"warning: {warning}")

    def check(self, record: dict[str, Any]) -> list[str]:
        """The new warnings that a round's record gives reason for."""
        texts = []
        for client in record["clients"]:
            number = client["client"]
            if client.get("started_over"):
                texts.append(
                    f"{self._title(number)}: its own state was damaged, in round {record['round']} it started over "
                    "from the global model (failures.damaged_state)"
                )
            self._ignoring[number] = self._ignoring.get(number, 0) + 1 if client.get("mu") == 1.0 else 0
            if self._ignoring[number] >= IGNORING_ROUNDS and self._first("ignores", number):
                texts.append(
                    f"{self._title(number)}: mu has been 1 for {IGNORING_ROUNDS} rounds, it ignores the global model"
                    f"{self._mu_remedy}"
                )
            if client.get("feature_std", 1.0) < COLLAPSED_BELOW and self._first("collapse", number):
                texts.append(
                    f"{self._title(number)}: its features collapsed in round {record['round']} "
                    f"(feature_std {client['feature_std']:.3f}): all images look alike to the encoder"
                )
        if record.get("feature_std", 1.0) < COLLAPSED_BELOW and self._first("collapse", EVERYBODY):
            texts.append(
                f"the clients' features collapsed in round {record['round']} (feature_std {record['feature_std']:.3f} "
                "on average; secure sums do not say whose): all images look alike to the encoder"
            )
        return texts

    def _first(self, kind: str, client: int) -> bool:
        new = (kind, client) not in self._reported
        self._reported.add((kind, client))
        return new
