import platform
import subprocess
import sys

import pytest

from fedssl.core.memory import keep_freed_memory

FAULTS = """
import resource, torch
from fedssl.core.memory import keep_freed_memory
torch.set_num_threads(1)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(4_000_000)  # 16 MB: 3,900 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.ones(4_000_000)
first = faults()
kept = keep_freed_memory()
faults()
print(kept, first, faults())
"""


@pytest.fixture
def _asked_anew():
    keep_freed_memory.cache_clear()
    yield
    keep_freed_memory.cache_clear()


@pytest.mark.usefixtures("_asked_anew")
@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_user_set_is_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert keep_freed_memory() is False


def test_blocks_used_again_cost_no_page_faults():
    shown = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout.split()
    kept, before, after = shown[0] == "True", int(shown[1]), int(shown[2])
    assert kept == (platform.libc_ver()[0] == "glibc")
    assert after < 100 if kept else after <= 2 * before
