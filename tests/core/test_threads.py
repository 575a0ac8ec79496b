import os
import subprocess
import sys

import pytest

from fedssl.core.threads import TURNS


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, TURNS),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, "None"),
    ],
)
def test_threads_wait_briefly_unless_the_user_says_otherwise(own, expected):
    """Before torch is imported, which reads it then."""
    unset = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    say = "import os, sys, fedssl; assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"
    found = subprocess.run([sys.executable, "-c", say], env=unset | own, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected
