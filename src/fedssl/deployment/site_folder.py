"""The state folder of a site: whose it is, and where its failures are written down."""

import json
from pathlib import Path

from fedssl.core.errors import FedsslError
from fedssl.core.files import write_atomically
from fedssl.experiment.records.run_record import read_json

OWNER, LOG = "client.json", "failures.jsonl"


def claim_state(state: Path, name: str) -> None:
    """A state folder belongs to one client for ever: one that was copied or swapped is refused."""
    state.mkdir(parents=True, exist_ok=True)
    owner = state / OWNER
    if not owner.exists():
        write_atomically(owner, json.dumps({"client": name}) + "\n")
    held_by = read_json(owner).get("client")
    if held_by != name:
        raise FedsslError(f"{state}: holds the state of {held_by!r}, not of {name!r}: give each client its own --state")
