"""What one round costs: CPU seconds and peak memory of a run in a process of its own.

    python -m benchmarks.cost '{"partition.num_clients": 30}'

The settings go on top of the preset `smoke`. Rounds are run as `fedssl run` does it, with client states and
checkpoints on disk; the second is timed, in which every client has a state, and the run is stopped after it.
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ALWAYS = {"rounds": 3, "threads": 1, "device": "cpu", "evaluation.every": 0, "partition.name": "iid"}


@dataclass(frozen=True)
class Cost:
    seconds: float
    megabytes: float


def cost(settings: dict[str, Any]) -> Cost:
    """Measured in a new process: the peak of this one knows only to rise."""
    command = [sys.executable, "-m", "benchmarks.cost", json.dumps(settings)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Cost(**json.loads(output.splitlines()[-1]))


def cost_here(settings: dict[str, Any]) -> Cost:
    from fedssl.experiment.experiment import load
    from fedssl.experiment.progress.views import QuietView

    class Stopwatch(QuietView):
        def __init__(self) -> None:
            self.ends: list[float] = []  # of round 0 (the first evaluation), 1, 2 …

        def round_finished(self, record: dict[str, Any]) -> None:  # noqa: ARG002
            self.ends.append(time.process_time())
            if len(self.ends) == 3:
                raise KeyboardInterrupt

    watch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="fedssl-bench-") as folder, suppress(KeyboardInterrupt):
        load("smoke", ALWAYS | settings).run(folder, watch)
    return Cost(watch.ends[2] - watch.ends[1], peak_bytes() / 1e6)


def peak_bytes() -> int:
    """Of this program: ru_maxrss would also count what the process that started it held at that moment."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    print(json.dumps(asdict(cost_here(json.loads(sys.argv[1])))))
