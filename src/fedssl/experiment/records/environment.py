"""Where a run was made: versions, hardware, commit; a number without these is an anecdote."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

PACKAGES = ("fedssl", "torch", "numpy", "safetensors", "pydantic")


def describe_environment(device: torch.device) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch_threads": torch.get_num_threads(),
        "git_commit": _git_commit(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


@cache  # what this process imported stays what it was
def _git_commit() -> str | None:
    """The commit of a source checkout, marked when it has changes; None for an installed package."""
    here = Path(__file__).resolve().parents[4]
    if not (here / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(here)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if changed.strip() else "")
