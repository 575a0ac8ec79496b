"""How processes that train come to life, and that none outlives the one that made it."""

import ctypes
import multiprocessing
import signal
import sys
from multiprocessing.context import ForkServerContext, SpawnContext


def worker_context() -> ForkServerContext | SpawnContext:
    """How workers come to life: on Linux from a server that has imported what they need and done nothing else."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedssl.federation.client"])
    return context


def die_with_the_parent(how: int = signal.SIGKILL) -> None:
    """On Linux, if the process that made it dies; in any case a worker ends at its next step, when the pipe breaks."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, how)
