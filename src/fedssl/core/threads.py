"""How the threads of one computation wait for each other."""

import os

# Turns of a loop that does nothing: long enough for threads that have a core each, short enough to leave one that
# another program wants. GNU OpenMP, which PyTorch's packages for Linux bring, takes 300,000 if nobody says otherwise.
TURNS = "2000"


def wait_briefly() -> None:
    """Threads that wait go to sleep soon; before torch is imported, later it has no effect. No bit changes.

    Otherwise each of two threads waits, awake, for one that waits for its core: beside a busy program of another
    session (benchmarks/threads.py) they take some 20 times as long. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", TURNS)
