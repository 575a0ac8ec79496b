"""Target 5: how long the command and the library take to start.

    PYTHONPATH=src python benchmarks/startup.py

Each repeat is a new process; CPU time of the least disturbed one, which is what it takes on a quiet machine.
"""

import resource
import subprocess
import sys

from measuring import Row, within

REPEATS = 7
PROGRAMS = {
    "fedssl --help": (["-m", "fedssl", "--help"], 0.5),
    "import fedssl, and torch with it": (["-c", "import fedssl; fedssl.load"], 2.5),
}


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows() -> list[Row]:
    found = []
    for name, (arguments, limit) in PROGRAMS.items():
        seconds = min(cpu_seconds(arguments) for _ in range(REPEATS))
        found.append(within(f"5 {name}", "limit", "s", limit, seconds, 1))
    return found


if __name__ == "__main__":
    for row in rows():
        print(row)
