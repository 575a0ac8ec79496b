"""The numbers of docs/performance.md and docs/scale.md: what `make bench` measured, kept in results/bench.json.

    python -m scripts.performance                     fills the pages and the picture from the record
    python -m scripts.performance record FILE [NOTE]  puts the rows of a bench.json of yours into the record

A row that is measured again replaces the one before. Every row names its run: the date, the machine and its load.
"""

import json
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import scale
from benchmarks.measuring import Row, number
from fedssl.experiment.records.run_record import read_json
from scripts.trials import RESULTS, ROOT

PAGES = ROOT / "docs/performance.md", ROOT / "docs/scale.md"
PICTURE, SIMULATED, RECORD = ROOT / "docs/performance.png", ROOT / "docs/scale.svg", RESULTS / "bench.json"
BLOCK = r"(?s)(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
VERDICTS = {True: "pass", False: "**fail**", None: "–"}
PROGRAMS = {"client: supernode": "sites", "server: superlink": "SuperLink", "server: flwr-serverapp": "server's app"}
OTHERS = "other processes"
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
    hops = {"run": name, **new["hops"]} if new["hops"] else record["hops"]
    used = {one["run"] for one in (*rows, *curves, *filter(None, [hops]))}
    runs = {key: about for key, about in {**record["runs"], name: run}.items() if key in used}
    return {"runs": runs, "rows": sorted(rows, key=_number), "curves": curves, "hops": hops}


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
    """Of all curves, or of one; nothing if that was not measured yet."""
    lines = ["| as this grows | sizes | seconds per round | peak memory, MB | run |", "|---|---|---|---|---|"]
    curves = [curve for curve in record["curves"] if name in ("", curve["name"])]
    for curve in curves:
        seconds, megabytes = (
            ", ".join(plain(cost[kind]) for cost in curve["costs"]) for kind in ("seconds", "megabytes")
        )
        sizes = ", ".join(f"{size / 1e6:.2g} M" if size > 1e5 else plain(size) for size in curve["sizes"])
        lines.append(f"| {curve['unit']} | {sizes} | {seconds} | {megabytes} | {letters(record)[curve['run']]} |")
    return "".join(f"{line}\n" for line in lines) if curves else ""


def hops_table(record: Record) -> str:
    """CPU seconds of a round by step and by program; of the sites all together. What no step counted comes last."""
    hops = record["hops"]
    if not hops:
        return ""
    whole: dict[str, float] = defaultdict(float)
    steps: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kind, seconds in hops["CPU seconds of a round"].items():
        whole[PROGRAMS.get(kind, OTHERS)] += seconds
    for place, seconds in hops["CPU seconds of a round, by step"].items():
        side, kind, step = place.split(": ")
        steps[step][PROGRAMS.get(f"{side}: {kind}", OTHERS)] += seconds
    shown = [name for name in (*PROGRAMS.values(), OTHERS) if name in whole]
    lines = sorted(steps.items(), key=lambda one: -sum(one[1].values()))
    rest = {name: whole[name] - sum(one.get(name, 0.0) for one in steps.values()) for name in shown}
    head = f"| step (run {letters(record)[hops['run']]}) | {' | '.join(shown)} |\n|---|{'---:|' * len(shown)}\n"
    return head + "".join(
        f"| {step} | {' | '.join(f'{one[name]:.2f}' if name in one else '' for name in shown)} |\n"
        for step, one in [*lines, ("sockets, event loops, all else", rest), ("**in all**", whole)]
    )


def simulated(record: Record) -> str:
    """Rounds with many clients, behind the server that was measured."""
    server, sites = scale.Server.of(record), scale.Clients()
    measured = (
        f"Clients train for a log-normal time (median {sites.train_median:g} s, sigma {sites.train_sigma:g}) on links "
        f"of {8 * sites.link / 1e6:g} Mbit/s; the server moves {number(server.throughput / 1e6)} MB/s, takes "
        f"{number(server.fixed)} s per round and {number(server.averaging)} s to average an upload, as measured above."
    )
    return f"\n{textwrap.fill(measured, 120)}\n\n{scale.table((10, 1_000, 100_000), server, sites)}\n"


def plain(value: float) -> str:
    """As `number`, without a comma, which stands between two of them."""
    return number(value).replace(",", "")


def filled(page: str, record: Record) -> str:
    """A page with the numbers of the record."""
    made: dict[str, Callable[[], str]] = {
        "bench": lambda: table(record),
        "bench runs": lambda: runs_list(record),
        "bench curves": lambda: curves_table(record),
        "bench sites": lambda: table(record, r"(9|13) |.* sites$"),
        "bench sites curve": lambda: curves_table(record, "sites"),
        "bench cluster curve": lambda: curves_table(record, "cluster"),
        "bench hops": lambda: hops_table(record),
        "bench simulation": lambda: simulated(record),
    }
    for name, make in made.items():
        if f"<!-- {name} -->" in page:
            text = make()
            page = re.sub(BLOCK.format(name=name), lambda match, text=text: match[1] + text + match[2], page)
    return page


def draw(record: Record) -> None:
    from benchmarks import bench
    from benchmarks.growth import Curve

    rows = [Row(**{key: value for key, value in row.items() if key != "run"}) for row in record["rows"]]
    bench.plot(rows, [Curve.of(one) for one in record["curves"]], PICTURE)
    scale.plot(SIMULATED, scale.Server.of(record), scale.Clients())


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
