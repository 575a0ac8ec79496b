"""audit.jsonl as a page of text: one paragraph per line of the record, newest last, and totals per run."""

from pathlib import Path

from fedssl.core.files import size_text
from fedssl.deployment.audit import UNREADABLE, Line

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


def page(path: Path, lines: list[Line], remarks: list[str]) -> str:
    """All lines for a person to read; `remarks` say what is wrong with some of them."""
    told = [f"{path}: {len(lines)} lines, the chain holds", *(f"remark: {text}" for text in remarks), ""]
    for line in lines:
        told += _paragraph(line)
    told += ["", "in all:", *_totals(lines)]
    return "\n".join([*told, f"SHA-256 of the last line: {lines[-1]['sha256']}" if lines else "nothing yet"])


def _paragraph(line: Line) -> list[str]:
    about = [f"run {line['run'][:12]}"] if line.get("run") else []
    about += [f"round {line['round']}"] if line.get("round") else []
    about += [f"settings {line['settings'][:16]}"] if line.get("settings") else []
    about += [f"epsilon {_number(line['epsilon'])}"] if "epsilon" in line else []
    about += [f"lines {line['lines'][0]} to {line['lines'][1]}"] if "lines" in line else []
    about += [f"from {line['data_before'][:16]} to {line['data'][:16]}"] if "data_before" in line else []
    parts = [f"    {part['name']}, {size_text(part['bytes'])}, {part['sha256']}" for part in line.get("left", ())]
    return [f"{line['time']}  {EVENTS.get(line['event'], line['event'])}: {', '.join(about)}", *parts]


def _totals(lines: list[Line]) -> list[str]:
    """Of each run: what left, how often, how long this machine worked, and what of privacy is spent."""
    told = []
    for run in dict.fromkeys(line["run"] for line in lines if "spent" in line):
        replies = [line for line in lines if line.get("run") == run and "spent" in line]
        spent, sent = replies[-1]["spent"], sum(part["bytes"] for line in replies for part in line["left"])
        epsilon = [f"epsilon {_number(line['epsilon'])}" for line in replies if "epsilon" in line][-1:]
        parts = [f"{spent['uploads']} uploads", size_text(sent), f"{spent['hours']:.2f} hours of work", *epsilon]
        told.append(f"  run {run}: {', '.join(parts)}")
    return told


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"
