"""What the system says of memory: its own files, a container, a limit of the user."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedssl.core import memory

OTHERS = "".join(f"{name}: 1 kB\n" for name in ("Buffers", "Cached", "Shmem", "Active", "Inactive", "Slab"))
MEMINFO = f"MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n{OTHERS}"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A made-up machine, whose files a test writes."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "resource", None)

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells mapped files apart")
def test_own_memory_is_without_mapped_files():
    status = Path("/proc/self/status").read_text()
    anonymous = int(status.split("RssAnon:")[1].split()[0]) * 1024
    assert memory.own_bytes() == pytest.approx(anonymous, abs=5e6)
    assert psutil.Process().memory_info().rss > anonymous + 5e6


def test_the_machine_alone(system):
    system(proc__meminfo=MEMINFO)
    assert memory.available_bytes() == 5000 * 1024


@pytest.mark.parametrize(
    "files",
    [
        {
            "cgroup__memory_dot_max": "1000000\n",
            "cgroup__memory_dot_current": "700000\n",
            "cgroup__memory_dot_stat": "anon 5\ninactive_file 100000\n",
        },
        {
            "cgroup__memory__memory_dot_limit_in_bytes": "1000000\n",
            "cgroup__memory__memory_dot_usage_in_bytes": "700000\n",
            "cgroup__memory__memory_dot_stat": "inactive_file 7\ntotal_inactive_file 100000\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_a_container_with_less(system, files):
    system(proc__meminfo=MEMINFO, **files)
    assert memory.available_bytes() == 400_000


def test_a_container_without_a_limit(system):
    system(proc__meminfo=MEMINFO, cgroup__memory_dot_max="max\n", cgroup__memory_dot_current="700000\n")
    assert memory.available_bytes() == 5000 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts own memory on Linux only")
def test_a_limit_that_the_user_set():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9));"
        "from fedssl.core.memory import available_bytes, own_bytes; print(available_bytes(), own_bytes())"
    )
    left, own = map(int, subprocess.check_output([sys.executable, "-c", program], text=True).split())
    assert left <= 10**9
    assert left == pytest.approx(10**9 - own, abs=5e6)
