"""The numbers of docs/performance.md and docs/scale.md: what `make bench` measured, kept in results/bench.json.

    python -m scripts.performance                     fills the pages and the picture from the record
    python -m scripts.performance record FILE [NOTE]  puts the rows of a bench.json of yours into the record

A row that is measured again replaces the one before. Every row names its run: the date, the machine and its load.
"""

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.measuring import Row, number
from fedssl.experiment.records.run_record import read_json
from scripts.trials import RESULTS, ROOT

PAGES = ROOT / "docs/performance.md", ROOT / "docs/scale.md"
PICTURE, RECORD = ROOT / "docs/performance.png", RESULTS / "bench.json"
BLOCK = r"(?s)(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
VERDICTS = {True: "pass", False: "**fail**", None: "–"}
Record = dict[str, Any]


def merged(record: Record, new: Record, note: str = "") -> Record:
    """The record with the rows and curves of one more run in the place of older ones of the same name."""
    about = new["environment"]
    name = f"{new['date']}, {about['cpu']}, {load_text(about['load_before_and_after'])}"
    run = {
        "command": new["command"],
        "date": new["date"],
        "hardware": f"{about['cores']} cores of {about['cpu']}",
        "versions": {"python": about["python"], **about["packages"]},
        "load": about["load_before_and_after"],
        "commit": about["git_commit"],
        "note": note,
    }
    rows = [{"run": name, **row} for row in new["rows"] if row["passed"] is not None]  # None: could not be measured
    rows = _replaced(record["rows"], rows, ("target", "against"))
    curves = _replaced(record["curves"], [{"run": name, **curve} for curve in new["curves"]], ("name",))
    used = {one["run"] for one in (*rows, *curves)}
    runs = {key: about for key, about in {**record["runs"], name: run}.items() if key in used}
    return {"runs": runs, "rows": sorted(rows, key=_number), "curves": curves}


def _replaced(old: list[Record], new: list[Record], keys: tuple[str, ...]) -> list[Record]:
    by_name = {tuple(one[key] for key in keys): one for one in (*old, *new)}
    return list(by_name.values())


def _number(row: Record) -> int:
    """Targets by their number; the exponents, which have none, stand with the fourth."""
    match = re.match(r"\d+", row["target"])
    return int(match[0]) if match else 4


def letters(record: Record) -> dict[str, str]:
    return {name: chr(ord("a") + place) for place, name in enumerate(record["runs"])}


def load_text(load: list[float]) -> str:
    return f"load {' to '.join(f'{value:.0f}' for value in load)}"


def runs_list(record: Record) -> str:
    lines = []
    for name, letter in letters(record).items():
        run = record["runs"][name]
        versions = f"Python {run['versions']['python']}, torch {run['versions']['torch']}"
        facts = [f"`{run['command']}`", run["date"], run["hardware"], versions]
        facts += [load_text(run["load"])] if run["load"] else []
        text = f"- **{letter}**: {', '.join([*facts, *filter(None, [run['note']])])}"
        lines.append(textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n")
    return "".join(lines)


def table(record: Record, targets: str = "") -> str:
    """Of all rows, or of those whose target matches."""
    head = "| target | against | unit | baseline | ours | ratio | needed | | run |"
    run_of = letters(record)
    lines = [head, "|---|---|---|---:|---:|---:|---:|---|---|"]
    for row in record["rows"]:
        if not re.match(targets, row["target"]):
            continue
        numbers = [number(row[name]) for name in ("baseline", "ours", "ratio")]
        named = [row["target"], row["against"], row["unit"], *numbers, row["needed"], VERDICTS[row["passed"]]]
        lines.append(f"| {' | '.join([*named, run_of[row['run']]])} |")
    return "".join(f"{line}\n" for line in lines)


def curves_table(record: Record, name: str = "") -> str:
    """Of all curves, or of one."""
    lines = ["| as this grows | sizes | CPU seconds per round | peak memory, MB | run |", "|---|---|---|---|---|"]
    for curve in record["curves"]:
        if name not in ("", curve["name"]):
            continue
        seconds, megabytes = (
            ", ".join(plain(cost[kind]) for cost in curve["costs"]) for kind in ("seconds", "megabytes")
        )
        sizes = ", ".join(f"{size / 1e6:.2f} M" if size > 1e5 else plain(size) for size in curve["sizes"])
        lines.append(f"| {curve['unit']} | {sizes} | {seconds} | {megabytes} | {letters(record)[curve['run']]} |")
    return "".join(f"{line}\n" for line in lines)


def plain(value: float) -> str:
    """As `number`, without a comma, which stands between two of them."""
    return number(value).replace(",", "")


def filled(page: str, record: Record) -> str:
    """A page with the numbers of the record."""
    made = {
        "bench": table(record),
        "bench runs": runs_list(record),
        "bench curves": curves_table(record),
        "bench sites": table(record, r"(9|13) |.* sites$"),
        "bench sites curve": curves_table(record, "sites"),
    }
    for name, text in made.items():
        page = re.sub(BLOCK.format(name=name), lambda match, text=text: match[1] + text + match[2], page)
    return page


def draw(record: Record) -> None:
    from benchmarks import bench
    from benchmarks.growth import Curve

    rows = [Row(**{key: value for key, value in row.items() if key != "run"}) for row in record["rows"]]
    bench.plot(rows, [Curve.of(one) for one in record["curves"]], PICTURE)


def main(words: list[str]) -> None:
    if words[:1] == ["record"]:
        known = merged(read_json(RECORD), read_json(Path(words[1])), " ".join(words[2:]))
        RECORD.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    elif words:
        sys.exit(__doc__)
    record = read_json(RECORD)
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), record), encoding="utf-8")
    draw(record)


if __name__ == "__main__":
    main(sys.argv[1:])
