"""Random streams by name, never by call order: any process can make the stream of (client 3, round 7) on its own."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on the run's seed and on every name, and on nothing else."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, *names))


def torch_stream(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))


@contextmanager
def global_stream(seed: int, *names: str | int) -> Iterator[None]:
    """For what draws from torch's global generators (initial weights, dropout): seeded inside, untouched outside."""
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=cuda):
        # Without a GPU the CPU's alone: torch.manual_seed also writes down a stack trace for a GPU that may come.
        (torch.manual_seed if cuda else torch.default_generator.manual_seed)(derive_seed(seed, *names))
        yield
