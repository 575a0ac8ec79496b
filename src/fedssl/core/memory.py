"""Memory: how much this process holds, how much is left, and keeping what a training step frees for the next one."""

from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]
import ctypes
import functools
import os
import platform

import psutil

CGROUP = Path("/sys/fs/cgroup")

# (limit, in use, what of it is files that the system can drop) of a container, in the two versions there are.
CONTAINERS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def own_bytes() -> int:
    """Memory that only this process can free: no mapped files, where the system tells them apart."""
    held = psutil.Process().memory_info()
    return int(held.rss - getattr(held, "shared", 0))


def available_bytes() -> int:
    """What processes may still take before the machine, its container or a limit of the user refuses."""
    known = [int(psutil.virtual_memory().available), *map(_left_in_container, CONTAINERS), _left_by_limit()]
    return min(count for count in known if count is not None)


def _left_in_container(names: tuple[str, str, str, str]) -> int | None:
    limit, used, stat, droppable = names
    try:
        most, now = (CGROUP / limit).read_text().strip(), int((CGROUP / used).read_text())
        counts = dict(line.split() for line in (CGROUP / stat).read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(int(most) - now + int(counts.get(droppable, 0)), 0) if most.isdigit() else None


def _left_by_limit() -> int | None:
    """`ulimit -d` counts for one process; who sets it means that a run shall not take more."""
    if resource is None:
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if most == resource.RLIM_INFINITY else max(most - own_bytes(), 0)


# mallopt's parameters and values (malloc.h); -1 for the trim threshold means never.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

LARGEST_KEPT = 1 << 30


@functools.cache
def keep_freed_memory() -> bool:
    """Asks glibc not to return freed blocks to the system, once a process; False where that cannot be set.

    It maps every large block anew, and the system gives new pages by fault, 4 KiB at a time: tens of thousands in one
    training step, up to a seventh of its time. In return the peak is up to an eighth higher, and stays.
    """
    chosen_by_user = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if platform.libc_ver()[0] != "glibc" or chosen_by_user:
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(M_TRIM_THRESHOLD, -1))


def give_back() -> None:
    """Returns to the system what is kept, where the C library can; the next step takes it again."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
