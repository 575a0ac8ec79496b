"""Every target of docs/performance.md in one table, printed and written as JSON with a plot; 20 to 35 minutes.

    make bench
    python -m benchmarks.bench [--only training,growth] [--out benchmarks/results]
    python -m scripts.performance record benchmarks/results/bench.json    # into the documentation

Each part is a module that can be run alone. A run that was stopped keeps the parts that it had measured: the same
command measures the others, unless the code is another by then. One thread, CPU; close what else is running: turns and
CPU time make the ratios sturdy, but memory and caches are shared with everything on the machine.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter
from rich.console import Console
from rich.table import Table

from benchmarks import (
    augmentation,
    averaging,
    checkpointing,
    cluster,
    commands,
    evaluation,
    growth,
    sites,
    startup,
    suite,
    threads,
    traffic,
    training,
    workers,
)
from benchmarks.measuring import Row, not_measured, number
from fedssl.experiment.records.environment import describe_environment

PARTS: dict[str, Callable[[], list[Row]]] = {
    "training": training.rows,
    "augmentation": augmentation.rows,
    "workers": workers.rows,
    "threads": threads.rows,
    "averaging": averaging.rows,
    "growth": growth.rows,
    "startup": startup.rows,
    "commands": commands.rows,
    "checkpointing": checkpointing.rows,
    "evaluation": evaluation.rows,
    "traffic": traffic.rows,
    "sites": sites.rows,
    "hops": list,  # no rows: a table of its own
    "cluster": cluster.rows,
    "suite": suite.rows,
}
ROOT = Path(__file__).parents[1]
FAILED = "failed"


CURVES: dict[str, Callable[[], list[growth.Curve]]] = {
    "growth": growth.curves,
    "sites": sites.curves,
    "cluster": cluster.curves,
}
HOPS: dict[str, Callable[[], dict[str, Any]]] = {"hops": sites.hops}
Measured = dict[str, Any]  # rows, curves, hops and seconds of a part, the load before and after


def measure(names: list[str], path: Path, console: Console) -> dict[str, Measured]:
    """Every part; `path` keeps those that are done. What failed is not kept: it is tried again."""
    done = kept(path)
    for name in names:
        if name in done:
            console.print(f"{name}: kept from a run that was stopped", style="dim")
            continue
        console.print(f"{name} …", style="dim")
        start, load = time.perf_counter(), os.getloadavg()[0]
        curves: list[growth.Curve] = []
        hops: dict[str, Any] = {}
        try:
            rows = PARTS[name]()
            curves = CURVES[name]() if name in CURVES else []
            hops = HOPS[name]() if name in HOPS else {}
        except (Exception, SystemExit) as error:  # costs this part's rows, not those of the others
            console.print_exception()
            rows = [not_measured(name, f"{FAILED}: {type(error).__name__}", "")]
        done[name] = {
            "rows": [asdict(row) for row in rows],
            "curves": [asdict(curve) for curve in curves],
            "hops": hops,
            "seconds": time.perf_counter() - start,
            "load": [load, os.getloadavg()[0]],
        }
        write(path, {"code": code(), "parts": done})
    return {name: done[name] for name in names}


def kept(path: Path) -> dict[str, Measured]:
    """Parts that a run of the same code measured before it was stopped."""
    if not path.exists():
        return {}
    known = json.loads(path.read_text(encoding="utf-8"))
    if known["code"] != code():
        return {}
    return {
        name: part
        for name, part in known["parts"].items()
        if not any(row["against"].startswith(FAILED) for row in part["rows"])
    }


@cache
def code() -> str:
    """A checksum of what is measured and of what measures it."""
    files = sorted(path for folder in ("src", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def write(path: Path, content: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def table(rows: list[Row]) -> Table:
    shown = Table(title="Targets", title_justify="left")
    for name in ("target", "against", "unit"):
        shown.add_column(name)
    for name in ("baseline", "ours", "ratio", "needed"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    words = {True: "[green]pass[/]", False: "[red]fail[/]", None: "[yellow]–[/]"}
    for row in rows:
        numbers = (number(value) for value in (row.baseline, row.ours, row.ratio))
        shown.add_row(row.target, row.against, row.unit, *numbers, row.needed, words[row.passed])
    return shown


def plot(rows: list[Row], curves: list[growth.Curve], path: Path) -> None:
    """Above: how far each target is met. Below: what a round costs as it grows."""
    mpl.use("Agg")
    judged = [row for row in reversed(rows) if row.margin is not None]
    mosaic = [["margins"] * max(len(curves), 1)] + [[curve.name for curve in curves]] * bool(curves)
    heights = [1 + len(judged) / 4, *[4.0] * bool(curves)]
    figure, axes = plt.subplot_mosaic(
        mosaic, figsize=(max(12, 4 * len(curves)), sum(heights)), height_ratios=heights, layout="constrained"
    )
    _draw_margins(axes["margins"], judged)
    for curve in curves:
        _draw_curve(axes[curve.name], curve)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _draw_margins(axis: Axes, judged: list[Row]) -> None:
    """Bars that begin at what is needed; those beyond the axis are cut, their number is beside them."""
    colours = ["tab:green" if row.passed else "tab:red" for row in judged]
    shown = [min(max(row.margin or 0, 0.5), 8) for row in judged]
    names = [f"{row.target} ({row.against})" for row in judged]
    bars = axis.barh(names, [value - 1 for value in shown], left=1, color=colours)
    axis.bar_label(bars, [f"{row.margin:.2g}" if row.margin else "" for row in judged], padding=3, fontsize="small")
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlim(0.5, 10)
    axis.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axis.minorticks_off()
    axis.set_xlabel("times better than needed")


def _draw_curve(axis: Axes, curve: growth.Curve) -> None:
    memory = axis.twinx()
    for place, kind, style, colour in ((axis, "seconds", "o-", "tab:blue"), (memory, "megabytes", "s--", "tab:orange")):
        values = [getattr(cost, kind) for cost in curve.costs]
        place.loglog(curve.sizes, values, style, color=colour, label=f"{kind}, exponent {curve.exponent(kind):.2f}")
        place.yaxis.set_major_formatter("{x:g}")
    axis.set_ylim(0.1, 100)
    memory.set_ylim(100, 10_000)
    ends = (curve.sizes[0], curve.sizes[-1])
    axis.set_xticks(ends, [f"{size:,.0f}" for size in ends])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(curve.unit)
    axis.set_ylabel("seconds per round")
    memory.set_ylabel("peak memory, MB")
    lines = [*axis.get_lines(), *memory.get_lines()]
    axis.legend(
        lines, [str(line.get_label()) for line in lines], fontsize="small", loc="lower left", bbox_to_anchor=(0, 1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]!r}; known: {', '.join(PARTS)}")
    torch.set_num_threads(1)
    console = Console()
    options.out.mkdir(parents=True, exist_ok=True)
    stopped = options.out / "stopped.json"
    parts = measure(names, stopped, console)
    rows = [Row(**row) for part in parts.values() for row in part["rows"]]
    curves = [growth.Curve.of(curve) for part in parts.values() for curve in part["curves"]]
    console.print(table(rows))
    some = "" if names == [*PARTS] else f" --only {options.only}"
    loads = [load for part in parts.values() for load in part["load"]]
    record: dict[str, Any] = {
        "command": f"python -m benchmarks.bench{some}",
        "date": datetime.now(UTC).date().isoformat(),
        "environment": describe_environment(torch.device("cpu")) | {"load_before_and_after": [loads[0], loads[-1]]},
        "seconds": {name: part["seconds"] for name, part in parts.items()},
        "rows": [asdict(row) for row in rows],
        "curves": [asdict(curve) for curve in curves],
        "hops": {name: value for part in parts.values() for name, value in part["hops"].items()},
    }
    write(options.out / "bench.json", record)
    plot(rows, curves, options.out / "bench.png")
    stopped.unlink()
    console.print(f"{sum(record['seconds'].values()):.0f} s; written to {options.out}", soft_wrap=True)


if __name__ == "__main__":
    main()
