"""audit.jsonl: a site's record of every task and of all that left it, one line each, chained by hash.

A line ends with the SHA-256 of all that stands before it, and holds that of the line before: what is changed, removed
or put in between is noticed. What a kill left of a line stays; the next one names it and the chain continues.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedssl.core.errors import FedsslError
from fedssl.core.files import append_line
from fedssl.core.lines import whole_tables
from fedssl.core.weights import Weights
from fedssl.federation.messages import Failure, TrainResult

AUDIT = "audit.jsonl"
UNREADABLE = "unreadable"  # the event that names lines which are not as they were written
Line = dict[str, Any]


@dataclass(frozen=True)
class Spent:
    """What a run has had of this site so far."""

    uploads: int = 0  # that differ
    hours: float = 0.0
    round_number: int = 0  # of the last upload
    upload: str = ""  # the last one, to know it again when it is sent twice


class Audit:
    """The record of a site, in its state folder."""

    def __init__(self, state: Path) -> None:
        self.path = state / AUDIT
        self._lock = FileLock(state / ".audit.lock")  # tasks, and people at the site

    def add(self, event: str, **facts: Any) -> None:
        """One line more, on the disk when this returns."""
        with self._lock:
            lines = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
            if torn := lines.pop():
                append_line(self.path, "")  # what is left of a line stays, as a line of its own
                lines.append(torn)
            good, before = len(lines), _last(lines)
            while good and _read(lines[good - 1]) is None:
                good -= 1
            if good < len(lines):
                before = self._append(UNREADABLE, {"lines": [good + 1, len(lines)]}, before)
            self._append(event, facts, before)

    def _append(self, event: str, facts: Line, before: str) -> str:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps({"time": time, "event": event, **facts, "previous": before}, allow_nan=False)[:-1]
        digest = hashlib.sha256(text.encode()).hexdigest()
        append_line(self.path, f'{text}, "sha256": "{digest}"}}')
        return digest

    def spent(self, run: str) -> Spent:
        """By the newest line that says it."""
        lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
        of_run = (_read(line) for line in reversed(lines) if run.encode() in line and b'"spent": ' in line)
        return next((Spent(**line["spent"]) for line in of_run if line and line["run"] == run), Spent())


def _last(lines: list[bytes]) -> str:
    return next((line["sha256"] for line in map(_read, reversed(lines)) if line), "")


def _read(line: bytes) -> Line | None:
    """A line that is as it was written; else None."""
    text, _, digest = line.rpartition(b', "sha256": "')
    if hashlib.sha256(text).hexdigest() + '"}' != digest.decode(errors="replace"):
        return None
    content = whole_tables([line])
    return content[0] if content and content[0].keys() >= {"time", "event", "previous"} else None


@dataclass(frozen=True)
class Checked:
    """An audit that was read: its lines as far as the chain holds, and what a reader must know of others."""

    lines: list[Line]
    remarks: list[str]  # on lines that a kill cut off
    broken: str = ""  # where the chain is broken; "": nowhere

    @property
    def last(self) -> str:
        """The hash that stands for all lines: to be noted elsewhere."""
        return str(self.lines[-1]["sha256"]) if self.lines and not self.broken else ""


def check_audit(path: Path) -> Checked:
    """All lines up to the end, or up to the one that was changed, or before which some are missing."""
    try:
        raw = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FedsslError(f"{path}: cannot be read ({error.strerror}): this site has recorded nothing yet") from None
    raw = raw if raw[-1] else raw[:-1]
    lines, remarks, before = list[Line](), list[str](), ""
    for number, line in enumerate(map(_read, raw), start=1):
        if line is None:
            remark, changed = _unreadable(number, raw)
            if changed:
                return Checked(lines, remarks, f"{path}, {remark}")
            remarks.append(remark)
        elif line["previous"] != before:
            missing = f"{path}, line {number}: does not follow on the line before: lines are missing"
            return Checked(lines, remarks, missing)
        else:
            lines.append(line)
            before = line["sha256"]
    return Checked(lines, remarks)


def _unreadable(number: int, raw: list[bytes]) -> tuple[str, bool]:
    """In words, and whether somebody changed it: the next line does not name it, and there is one."""
    after = next(filter(None, map(_read, raw[number:])), None)
    if after and not (after["event"] == UNREADABLE and after["lines"][0] <= number <= after["lines"][1]):
        return f"line {number}: is not as it was written", True
    noticed = f"noticed on {after['time']}" if after else "the next line will name it"
    return (
        f"line {number}: cut off, as by a kill while it was written, or changed before the next one; {noticed}",
        False,
    )


def parts_of(reply: TrainResult | Failure) -> list[Line]:
    """What a reply consists of: name, size and SHA-256 of each part."""
    if isinstance(reply, Failure):
        return [_text(f"code: {reply.code}", reply.code), *([_text("reason", reply.shared)] if reply.shared else [])]
    masked = " (masked)" if reply.stage else ""
    weights = reply.weights
    tensors = {f"encoder{masked}": weights.encoder, f"predictor{masked}": weights.predictor}
    tensors |= {f"payload/{name}": Weights({name: tensor}) for name, tensor in reply.payload.items()}
    parts = [
        {"name": name, "bytes": part.num_bytes(), "sha256": part.digest()}
        for name, part in tensors.items()
        if part.num_bytes()
    ]
    if reply.stage:
        kind = reply.stage.split(b" ")[0].decode(errors="replace")
        return [*parts, _text(f"stage: {kind}", reply.stage.decode())]
    numbers = {"num_examples": reply.num_examples, **reply.scalars, **reply.profile}
    return [*parts, _text(f"numbers: {', '.join(numbers)}", json.dumps(numbers))]


def _text(name: str, text: str) -> Line:
    content = text.encode()
    return {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def after(spent: Spent, reply: TrainResult | Failure, parts: list[Line], seconds: float) -> Spent:
    """With this reply; an upload that is sent again, or masked anew for the same sum, counts once."""
    hours = spent.hours + seconds / 3600
    if isinstance(reply, Failure) or not reply.weights.num_bytes():
        return Spent(spent.uploads, hours, spent.round_number, spent.upload)
    upload = f"sum of round {reply.round_number}" if reply.stage else str(parts[0]["sha256"])
    return Spent(spent.uploads + (upload != spent.upload), hours, reply.round_number, upload)
