"""Where a run was made: the commit of a checkout, wherever in the package the module lies that asks."""

import subprocess
from pathlib import Path

import pytest
import torch

from fedssl.experiment.records.environment import describe_environment

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_commit_of_a_checkout_is_recorded():
    head = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "HEAD"], text=True).strip()
    assert describe_environment(torch.device("cpu"))["git_commit"].removesuffix("+changes") == head
