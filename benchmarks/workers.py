"""Target 2: rounds with two worker processes against one, on two cores; both must end with the same bits.

    python -m benchmarks.workers

The two engines take turns, a round each; the first round, in which workers come to life, does not count. Time on the
clock, of the least disturbed round: unlike CPU time it shows whether two workers get in each other's way, so nothing
else may run on the machine.
"""

import os
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Row, faster, not_measured
from fedssl.experiment.backends import for_workers
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config
from fedssl.federation.engines.processes import ProcessEngine
from fedssl.federation.rounds import ServerState, run_rounds

NEEDED, ROUNDS = 1.7, 3
SETTINGS = {
    "data.train_images": 4 * 512,
    "partition.name": "iid",
    "partition.num_clients": 4,
    "network.name": "resnet18",
    "network.width": 16,
    "network.head_hidden": 512,
    "network.head_out": 256,
    "local_training.batch_size": 128,
    "device": "cpu",
    "threads": 1,
    "rounds": 1000,  # more than are run: the learning rate hardly changes
}
TARGET, AGAINST = "2 two worker processes, ResNet-18, width 16", "one worker"


class Federation:
    """A run's rounds in so many workers."""

    def __init__(self, workers: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="fedssl-bench-")
        path = Path(self.folder.name)
        config = load_config("smoke", SETTINGS | {"engine": "processes", "workers": workers})
        parts = build(config)
        (path / "clients").mkdir()
        self.engine = ProcessEngine(side=for_workers(config, path / "clients"), folder=path, workers=workers)
        state = ServerState(0, parts.client.initial_global_weights())
        self.rounds = run_rounds(parts.server, self.engine, state, ROUNDS)
        self.seconds: list[float] = []
        self.digest = ""

    def turn(self) -> None:
        start = time.perf_counter()
        outcome = next(self.rounds)
        self.seconds.append(time.perf_counter() - start)
        assert not outcome.failures, outcome.failures
        self.digest = outcome.state.global_weights.digest


def rows() -> list[Row]:
    if len(os.sched_getaffinity(0)) < 2:
        return [not_measured(TARGET, "not measured: one core only", f"≥ {NEEDED:g}")]
    one, two = Federation(1), Federation(2)
    with one.engine, two.engine:
        for _ in range(ROUNDS):
            one.turn()
            two.turn()
    assert one.digest == two.digest, "the engines disagree"
    return [faster(TARGET, AGAINST, "s per round", min(one.seconds[1:]), min(two.seconds[1:]), NEEDED)]


if __name__ == "__main__":
    for row in rows():
        print(row)
