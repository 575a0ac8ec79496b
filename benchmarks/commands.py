"""Targets 10 and 11: what the commands of the first minute cost, in CPU seconds of a process of their own.

    python -m benchmarks.commands

The least disturbed repeat, against the limit. The report is that of a run of the preset for CPUs: one round of one
client on synthetic images, as many of them as CIFAR-10 has in that preset.
"""

import shutil
import tempfile
from pathlib import Path

from benchmarks.measuring import Row, within
from benchmarks.startup import cpu_seconds

REPEATS, RUNS = 3, 500
FEDSSL = ["-m", "fedssl"]
SMALL = {
    "data.name": "synthetic",
    "data.train_images": 10_000,
    "data.test_images": 10_000,
    "rounds": 1,
    "client_sampling.clients_per_round": 1,
    "evaluation.linear_probe": "false",
    "evaluation.every": 0,
    "engine": "in-process",
    "threads": 1,
}


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="fedssl-bench-") as name:
        folder = Path(name)
        smoke = min(cpu_seconds([*FEDSSL, "run", "smoke", "--out", str(folder / f"smoke-{n}")]) for n in range(REPEATS))
        for number in range(RUNS):
            shutil.copytree(folder / "smoke-0", folder / "many" / f"run-{number}")
        settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
        cpu_seconds([*FEDSSL, "run", "cifar10-cpu", *settings, "--out", str(folder / "run")])
        taken = {
            "10 fedssl report, a CPU run": (_least(["report", str(folder / "run")]), 15.0),
            "11 fedssl run smoke": (smoke, 6.0),
            "11 fedssl presets": (_least(["presets"]), 0.5),
            f"11 fedssl ls, {RUNS} runs": (_least(["ls", str(folder / "many")]), 1.0),
        }
    return [within(name, "limit", "s", limit, seconds, 1) for name, (seconds, limit) in taken.items()]


def _least(arguments: list[str]) -> float:
    return min(cpu_seconds([*FEDSSL, *arguments]) for _ in range(REPEATS))


if __name__ == "__main__":
    for row in rows():
        print(row)
