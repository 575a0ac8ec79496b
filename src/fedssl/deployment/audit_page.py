"""audit.jsonl for a person to read: as text, or as a page in one file; what left, in all and line by line, by run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl import __version__
from fedssl.core.files import size_text
from fedssl.deployment.audit import UNREADABLE, Checked, Line
from fedssl.reports.page import Rows, Tile, templates

EVENTS = {
    "task": "task came",
    "reply": "reply left",
    "asked": "approval was asked for",
    "approved": "a person approved the run",
    "left": "the site left the run",
    "joined": "the site joined the run again",
    "data-changed": "the images are not those of the round before (--accept-changed-data)",
    UNREADABLE: "lines of this record are not as they were written",
}
NOTE = "Note the SHA-256 of the last line elsewhere: a chain cannot show that its end is missing."
HEAD = ("run", "uploads", "left in all", "hours of work", "epsilon", "from", "to")


@dataclass(frozen=True)
class Entry:
    """A line of the record in words, and the parts that left with it."""

    time: str
    what: str
    about: str
    parts: Sequence[tuple[str, str, str]]  # name, size, SHA-256


@dataclass(frozen=True, kw_only=True)
class AuditPage:
    """What the template of the page gets."""

    title: str
    story: Sequence[str]
    tiles: Sequence[Tile]  # the verdict is the first
    broken: bool
    remarks: Sequence[str]
    head: Sequence[str]
    totals: Rows
    runs: Sequence[tuple[str, Sequence[Entry]]]
    version: str = __version__


def page(path: Path, checked: Checked, run: str = "") -> str:
    """All lines, or those of the runs whose id begins so, newest last, then totals per run; the chain holds."""
    lines = _of_run(checked.lines, run)
    shown = [
        f"{path}: {len(checked.lines)} lines, the chain holds",
        *(f"remark: {text}" for text in checked.remarks),
        "",
    ]
    for line in lines:
        entry, run_id = _entry(line), [f"run {line['run'][:12]}"] if line.get("run") else []
        shown.append(f"{line['time']}  {entry.what}: {', '.join([*run_id, *filter(None, [entry.about])])}")
        shown += [f"    {', '.join(part)}" for part in entry.parts]
    shown += ["", "in all:", *(f"  {_sentence(total)}" for total in _totals(lines))]
    return "\n".join([*shown, f"SHA-256 of the last line: {checked.last}" if checked.last else "nothing yet"])


def html_page(path: Path, checked: Checked, run: str = "") -> str:
    """The same as one file for a browser, the verdict on the chain first; of a broken one, what stands before it."""
    lines, totals = _of_run(checked.lines, run), _totals(_of_run(checked.lines, run))
    sent = sum(total["bytes"] for total in totals)
    verdict = "is BROKEN: this record was changed" if checked.broken else f"holds, over {len(checked.lines)} lines"
    tiles = [
        Tile("Verdict", f"The chain {verdict}", checked.broken or f"last line: {checked.last}", is_text=True),
        Tile("Left this site", size_text(sent), f"in {sum(total['uploads'] for total in totals)} uploads"),
        Tile("Runs", str(len(totals)), "that something left for"),
        Tile("Hours of work", f"{sum(total['hours'] for total in totals):.2f}", "for all of them"),
    ]
    by_run: dict[str, list[Entry]] = {}
    for line in lines:
        by_run.setdefault(str(line.get("run", "")), []).append(_entry(line))
    content = AuditPage(
        title="What left this site",
        story=[f"The record of a site, {path}: every task, and all that left, by name, size and SHA-256. {NOTE}"],
        tiles=tiles,
        broken=bool(checked.broken),
        remarks=checked.remarks,
        head=HEAD,
        totals=[_row(total) for total in totals],
        runs=[(f"run {run}" if run else "of no run", entries) for run, entries in by_run.items()],
    )
    return templates().get_template("audit.html").render(page=content)


def _of_run(lines: list[Line], run: str) -> list[Line]:
    return [line for line in lines if str(line.get("run", "")).startswith(run)]


def _entry(line: Line) -> Entry:
    about = [f"round {line['round']}"] if line.get("round") else []
    about += [f"settings {line['settings'][:16]}"] if line.get("settings") else []
    about += [f"epsilon {_number(line['epsilon'])}"] if "epsilon" in line else []
    about += [f"lines {line['lines'][0]} to {line['lines'][1]}"] if "lines" in line else []
    about += [f"from {line['data_before'][:16]} to {line['data'][:16]}"] if "data_before" in line else []
    parts = [(part["name"], size_text(part["bytes"]), part["sha256"]) for part in line.get("left", ())]
    return Entry(_time(line), str(EVENTS.get(line["event"], line["event"])), ", ".join(about), parts)


def _totals(lines: list[Line]) -> list[dict[str, Any]]:
    """Of each run: what left, how often, how long this machine worked, and what of privacy is spent."""
    totals = []
    for run in dict.fromkeys(line["run"] for line in lines if "spent" in line):
        replies = [line for line in lines if line.get("run") == run and "spent" in line]
        sent = sum(part["bytes"] for line in replies for part in line["left"])
        epsilon = [_number(line["epsilon"]) for line in replies if "epsilon" in line][-1:]
        times = {"from": _time(replies[0]), "to": _time(replies[-1])}
        totals.append(replies[-1]["spent"] | times | {"run": run, "bytes": sent, "epsilon": "".join(epsilon)})
    return totals


def _sentence(total: dict[str, Any]) -> str:
    parts = [f"{total['uploads']} uploads", size_text(total["bytes"]), f"{total['hours']:.2f} hours of work"]
    parts += [f"epsilon {total['epsilon']}"] if total["epsilon"] else []
    return f"run {total['run']}: {', '.join(parts)}"


def _row(total: dict[str, Any]) -> list[str]:
    uploads, hours = str(total["uploads"]), f"{total['hours']:.2f}"
    return [
        total["run"],
        uploads,
        size_text(total["bytes"]),
        hours,
        total["epsilon"] or "–",
        total["from"],
        total["to"],
    ]


def _time(line: Line) -> str:
    return f"{str(line['time'])[:19].replace('T', ' ')} UTC"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"
