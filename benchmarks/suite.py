"""Target 12: how long `make test` takes, on as many cores as it finds.

python -m benchmarks.suite
"""

import subprocess
import time
from pathlib import Path

from benchmarks.measuring import Row, not_measured, within

LIMIT = 6.0  # minutes, on two cores


def rows() -> list[Row]:
    """Clock time, every check and test; what fails has no time."""
    start = time.perf_counter()
    done = subprocess.run(["make", "test"], cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        return [not_measured("12 make test", "not measured: it fails", "≤ 1")]
    return [within("12 make test", "limit, on two cores", "min", LIMIT, (time.perf_counter() - start) / 60, 1)]


if __name__ == "__main__":
    for row in rows():
        print(row)
