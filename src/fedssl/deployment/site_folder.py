"""What a site's processes have in common: the state folder, whose it is, and what a node is started with."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from fedssl.core.errors import FedsslError
from fedssl.core.files import write_atomically
from fedssl.experiment.records.run_record import read_json

OWNER, LOG = "client.json", "failures.jsonl"


def claim_state(state: Path, name: str) -> None:
    """A state folder belongs to one client for ever: one that was copied or swapped is refused.

    One that is made here is for its owner alone: weights, the audit and texts of failures are nobody else's.
    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = state / OWNER
    if not owner.exists():
        write_atomically(owner, json.dumps({"client": name}) + "\n")
    held_by = read_json(owner).get("client")
    if held_by != name:
        raise FedsslError(f"{state}: holds the state of {held_by!r}, not of {name!r}: give each client its own --state")


@dataclass(frozen=True)
class Start:
    """What the process of a node is started with."""

    server: str
    ca: str  # the file of the server's CA; "": not encrypted
    key: str  # the file of the node's own key; "": none
    node: dict[str, str]  # what its app is told

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(**json.loads(text))
