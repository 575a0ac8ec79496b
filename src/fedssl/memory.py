"""How much memory this process holds and how much more there is; None where the system does not say."""

from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
# (limit, in use, what of it is files that the system can drop) of a container, in the two versions there are.
CONTAINERS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def own_bytes() -> int | None:
    """Memory that only this process can free: no mapped files."""
    return _field(PROC / "self" / "status", "RssAnon:")


def available_bytes() -> int | None:
    """What processes may still take before the machine, its container or a limit of the user refuses."""
    known = [_field(PROC / "meminfo", "MemAvailable:"), *map(_left_in_container, CONTAINERS), _left_by_limit()]
    return min((count for count in known if count is not None), default=None)


def _left_in_container(names: tuple[str, str, str, str]) -> int | None:
    limit, used, stat, droppable = names
    try:
        most, now = (CGROUP / limit).read_text().strip(), int((CGROUP / used).read_text())
    except (OSError, ValueError):
        return None
    files = _field(CGROUP / stat, droppable, 1) or 0
    return max(int(most) - now + files, 0) if most.isdigit() else None


def _left_by_limit() -> int | None:
    """`ulimit -d` counts for one process; who sets it means that a run shall not take more."""
    if resource is None:
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if most == resource.RLIM_INFINITY else max(most - (own_bytes() or 0), 0)


def _field(path: Path, name: str, unit: int = 1024) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * unit for line in lines if line.startswith(name)), None)
