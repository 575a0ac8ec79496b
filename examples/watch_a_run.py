"""Watch a run from Python, and end it when it has learnt enough: python watch_a_run.py [OUT [ENOUGH]]."""

import sys
from typing import Any

import fedssl


class EnoughError(Exception):
    """Raised by an observer: the run ends, and the same call would resume it."""


class Watch(fedssl.Observer):
    """Prints one line per round, and stops at an accuracy."""

    def __init__(self, enough: float) -> None:
        self.enough, self.curve = enough, list[float]()

    def round_finished(self, record: dict[str, Any], outcome: Any) -> None:  # noqa: ARG002 - of the contract
        self.curve.append(record["knn"])
        print(f"round {record['round']}: kNN {record['knn']:.1%} {'#' * round(50 * record['knn'])}")
        if record["round"] and record["knn"] >= self.enough:
            raise EnoughError

    def finish(self, summary: dict[str, Any]) -> None:
        print(f"{summary['status']} after round {summary['rounds']}")


def main(out: str = "runs/watched", enough: str = "0.12") -> None:
    try:
        fedssl.load("smoke", {"evaluation.every": 1}).run(out, observers=[Watch(float(enough))])
    except EnoughError:
        print("enough")


if __name__ == "__main__":
    main(*sys.argv[1:])
