"""Target 5: how long the command and the library take to start.

    python -m benchmarks.startup

Each repeat is a new process; CPU time of the least disturbed one, which is what it takes on a quiet machine.
"""

import resource
import subprocess
import sys

from benchmarks.measuring import Row, within

REPEATS = 7
LIMITS = {
    "fedssl --help": (["-m", "fedssl", "--help"], 0.5),
    "import fedssl": (["-c", "import fedssl"], 2.5),
}
BEYOND_TORCH = (
    1.3  # our own limit for the first use against torch alone, set after 1.28 was measured: it guards, no more
)


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows() -> list[Row]:
    rows = []
    for name, (arguments, limit) in LIMITS.items():
        seconds = min(cpu_seconds(arguments) for _ in range(REPEATS))
        rows.append(within(f"5 {name}", "limit", "s", limit, seconds, 1))
    pairs = [
        (cpu_seconds(["-c", "import torch"]), cpu_seconds(["-c", "import fedssl; fedssl.load"])) for _ in range(REPEATS)
    ]
    torch, ours = (min(times) for times in zip(*pairs, strict=True))
    return [*rows, within("5 first use: fedssl.load", "import torch", "s", torch, ours, BEYOND_TORCH)]


if __name__ == "__main__":
    for row in rows():
        print(row)
