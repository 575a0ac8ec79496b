"""Targets 10 and 11: what the commands of the first minute cost, in CPU seconds of a process of their own.

    python -m benchmarks.commands

The least disturbed repeat, against the limit. The report is that of a run of the preset for CPUs: one round of one
client on synthetic images, as many of them as CIFAR-10 has in that preset. What else would draw its maps is
scikit-learn, beside which they stand: as many points, steps and threads.
"""

import shutil
import tempfile
from pathlib import Path

import torch

from benchmarks.evaluation import Features
from benchmarks.measuring import Row, faster, take_turns, within
from benchmarks.startup import cpu_seconds
from fedssl.evaluation.projection import tsne

REPEATS, RUNS, POINTS, STEPS = 3, 500, 1000, 500
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
    rows = [within(name, "limit", "s", limit, seconds, 1) for name, (seconds, limit) in taken.items()]
    return [*rows, map_row()]


def map_row() -> Row:
    from sklearn.manifold import TSNE

    torch.set_num_threads(1)
    features = Features.make(POINTS, 1, 128).train
    theirs = TSNE(init="pca", max_iter=STEPS, n_jobs=1, random_state=0)
    makers = {"theirs": lambda: theirs.fit_transform(features.numpy()), "ours": lambda: tsne(features, STEPS)}
    taken, _ = take_turns(makers, REPEATS)
    return faster("10 a t-SNE of its report, 1,000 images", "scikit-learn", "s", taken["theirs"], taken["ours"], 1)


def _least(arguments: list[str]) -> float:
    return min(cpu_seconds([*FEDSSL, *arguments]) for _ in range(REPEATS))


if __name__ == "__main__":
    for row in rows():
        print(row)
